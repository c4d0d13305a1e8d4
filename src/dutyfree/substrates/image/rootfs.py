"""What a directory must be to serve as the root of a sandbox. Looks only; changes nothing."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from dutyfree.core.errors import Misuse

MOUNT_POINTS = ("dev", "etc", "proc", "run", "sys", "tmp")
"""What a sandbox mounts over or writes to while it starts: a link here would lead that elsewhere."""

_LAYER_SIGNS = ("oci-layout", "manifest.json", "index.json", "repositories")


def check(rootfs: Path, *, name: str) -> None:
    """Refuse, as Misuse, what a sandbox must not start on."""
    for point in MOUNT_POINTS:
        try:
            mode = (rootfs / point).lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            raise Misuse(f"{name!r} has a symlink at /{point}: refused, since a sandbox mounts there", field="image")
        if not stat.S_ISDIR(mode):
            raise Misuse(f"{name!r} has something other than a directory at /{point}", field="image")
    found = {place.name for place in rootfs.iterdir()}
    if not found:
        raise Misuse(f"{name!r} is empty", field="image")
    if found.intersection(_LAYER_SIGNS) and not found.intersection(("bin", "usr", "etc")):
        raise Misuse(f"{name!r} holds a container image's layers, not a filesystem: use `docker export`", field="image")


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
