"""Makes a stack of layers shorter: its uppermost layers become one, which shows the same over what stays below.

Files are linked, not copied: layers lie on one filesystem and never change. The lowest layers stay as they are, since
those are what images share.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from dutyfree.image.digest import attributes
from dutyfree.image.images import Images
from dutyfree.image.root import delete
from dutyfree.image.view import OPAQUE, is_opaque, is_whiteout, make_opaque

MAX_IMPORTED = 40
"""Layers of an image from elsewhere: leaves room below the store's MAX_LAYERS for stages and snapshots on top."""


def shorten(images: Images, layers: Sequence[str], at_most: int) -> tuple[str, ...]:
    """The keys of a stack of at most that many layers that shows the same; held by the store. Blocks."""
    surplus = len(layers) - at_most
    if surplus <= 0:
        return tuple(layers)
    upper, lower = layers[: surplus + 1], layers[surplus + 1 :]
    key = hashlib.sha256("\0".join(("merged-1", *upper)).encode()).hexdigest()
    with images.root.exclusive(key):
        if not images.layers.hold_sound(key):
            with images.building() as draft:
                for layer in reversed(upper):
                    lay(images.layers.path(layer), draft.rootfs)
                images.layers.publish(draft, key=key, source=f"{len(upper)} layers merged")
    return (key, *lower)


def lay(upper: Path, merged: Path) -> None:
    """Lay one more layer over what is merged already."""
    for name in os.listdir(upper):
        source, target = upper / name, merged / name
        status = source.lstat()
        there = _status(target)
        if not stat.S_ISDIR(status.st_mode):
            _clear(target, there)
            _link(source, target, status)
            continue
        if there is None:
            target.mkdir()
        elif not stat.S_ISDIR(there.st_mode) or is_opaque(source):
            # What was here hid what is below; the new directory goes on hiding it.
            _clear(target, there)
            target.mkdir()
            make_opaque(target)
        lay(source, target)
        _dress(source, target, status)
    _dress(upper, merged, os.stat(upper))


def _link(source: Path, target: Path, status: os.stat_result) -> None:
    if is_whiteout(status):
        os.mknod(target, stat.S_IFCHR, 0)
    else:
        os.link(source, target, follow_symlinks=False)


def _dress(source: Path, target: Path, status: os.stat_result) -> None:
    """Give a directory the owner, mode, attributes and times of another; opaque it stays if it was."""
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid)
    given = dict(attributes(os.fspath(source)))
    for name, _ in attributes(os.fspath(target)):
        if name not in given and name not in OPAQUE:
            os.removexattr(target, name)
    for name, value in given.items():
        os.setxattr(target, name, value)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _clear(path: Path, there: os.stat_result | None) -> None:
    if there is None:
        return
    if stat.S_ISDIR(there.st_mode):
        delete(path)
    else:
        path.unlink()


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
