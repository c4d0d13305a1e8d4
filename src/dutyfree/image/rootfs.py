"""Check that a directory can serve as the root of a sandbox. Looks only; changes nothing."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from dutyfree.core.errors import Misuse
from dutyfree.image.view import View

MOUNT_POINTS = ("dev", "etc", "proc", "run", "sys", "tmp")
"""What a sandbox mounts over or writes to while it starts: a link here would lead that elsewhere."""

_LAYER_SIGNS = ("oci-layout", "manifest.json", "index.json", "repositories")


def check(rootfs: Path, *, name: str, imported: bool = False) -> None:
    """Refuse, as Misuse, what a sandbox must not start on. `imported`: on its way into the store, and not in place."""
    for point in MOUNT_POINTS:
        try:
            mode = (rootfs / point).lstat().st_mode
        except FileNotFoundError:
            continue
        _check_point(mode, point, name)
    if not any(rootfs.iterdir()):
        raise Misuse(f"{name!r} is empty", field="image")
    if _holds_layers(rootfs):
        remedy = "save the whole image again, as `docker save` does" if imported else "`dutyfree image import` it"
        raise Misuse(f"{name!r} holds parts of a container image, and no filesystem: {remedy}", field="image")


def check_stack(layers: Sequence[Path], *, name: str) -> None:
    """The same, of layers that are mounted over each other, uppermost first."""
    view = View(layers)
    for point in MOUNT_POINTS:
        entry = view.entry((point,))
        if entry is not None:
            _check_point(entry.status.st_mode, point, name)
    if not any(os.listdir(layer) for layer in layers):
        raise Misuse(f"{name!r} is empty", field="image")


def _check_point(mode: int, point: str, name: str) -> None:
    if stat.S_ISLNK(mode):
        raise Misuse(f"{name!r} has a symlink at /{point}: refused, since a sandbox mounts there", field="image")
    if not stat.S_ISDIR(mode):
        raise Misuse(f"{name!r} has something other than a directory at /{point}", field="image")


def is_saved_image(folder: Path) -> bool:
    """Whether a directory is what an image is saved as, a layout or with a manifest, and no filesystem."""
    return _holds_layers(folder) and any((folder / sign).is_file() for sign in _LAYER_SIGNS[:2])


def _holds_layers(folder: Path) -> bool:
    found = {place.name for place in folder.iterdir()}
    return bool(found.intersection(_LAYER_SIGNS)) and not found.intersection(("bin", "usr", "etc"))


def fingerprint(rootfs: Path) -> str:
    """A key for a directory that stays where it is: from every entry's name, type, size, inode and times, not content."""
    digest = hashlib.sha256(b"directory-1\0" + os.fsencode(rootfs))
    for folder, folders, files, fd in os.fwalk(rootfs):
        folders.sort()
        for name in sorted(folders + files):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            facts = (status.st_mode, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            digest.update(os.fsencode(f"{folder}/{name}") + repr(facts).encode())
    return digest.hexdigest()
