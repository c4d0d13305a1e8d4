"""Reserve room on a filesystem: a disk that owns its blocks loses nothing when others fill the rest.

A sparse disk is a promise that the filesystem below may break, and breaks without a word: the sandbox's kernel has
said yes to a write long before it finds that there is no block for it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from dutyfree.core.errors import Saturated, Unavailable
from dutyfree.image.root import scan

LOOPS = Path("/sys/block")
_SECTOR = 512

_libc = ctypes.CDLL(None, use_errno=True)


def reserve(fd: int, size_bytes: int, folder: Path) -> None:
    """Give a file in `folder` all the blocks it can come to need; what is in it stays. Blocks.

    `Saturated`, with the numbers, if the filesystem has not as many for everybody (root's last reserve is left alone).
    One at a time in all processes, so that of several who take the last room one gets it.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        room = os.fstatvfs(fd)
        missing = size_bytes - os.fstat(fd).st_blocks * _SECTOR
        if missing > room.f_bavail * room.f_frsize or not _allocate(fd, size_bytes):
            raise _saturated(size_bytes, folder)
    finally:
        os.close(lock)


def _allocate(fd: int, size_bytes: int) -> bool:
    """False if there is no room. By the system's own call: the library's would write zeros where that is not offered."""
    while _libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(size_bytes)) != 0:
        error = ctypes.get_errno()
        if error in (errno.ENOSPC, errno.EDQUOT):
            return False
        if error == errno.EOPNOTSUPP:
            raise Unavailable(
                "disk storage needs a filesystem that can reserve room (ext4, xfs), and the store's cannot",
                enable="export DUTYFREE_HOME=<a directory on such a filesystem>",
            )
        if error != errno.EINTR:
            raise OSError(error, os.strerror(error))
    return True


def _saturated(size_bytes: int, folder: Path) -> Saturated:
    room = os.statvfs(folder)
    taken = list(_reserved(folder))
    return Saturated(
        f"no room for a disk: {_mib(size_bytes)} were asked for, {_mib(room.f_bavail * room.f_frsize)} are free in {folder}, "
        f"{_mib(sum(taken))} are reserved there by {len(taken)} disks of sandboxes; ask for less by limits.disk_bytes, "
        "end sandboxes, or move the store by DUTYFREE_HOME",
        step="create",
    )


def _reserved(folder: Path) -> Iterator[int]:
    """The disks of live sandboxes, of whatever process: files without a name, on loop devices."""
    for device in scan(LOOPS):
        try:
            backing = Path(device.path, "loop/backing_file").read_text()
            sectors = int(Path(device.path, "size").read_text())
        except OSError:
            continue
        if backing.startswith(f"{folder}/#"):
            yield sectors * _SECTOR


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.0f} MiB"
