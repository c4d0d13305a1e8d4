"""Directories of sandboxes: made with their owner's mark, and swept when that owner has died without removing them.

The mark is a link to nowhere inside the directory. In the name it would leave too little of the 107 bytes that the
path of a unix socket below it may have. Whatever carries no mark, or that of an owner on another machine, is left
alone.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from dutyfree.core.spec import Storage
from dutyfree.driver.owner import is_orphan
from dutyfree.guest.thread import in_thread
from dutyfree.tree.beneath import delete_tree

_PREFIX = "dutyfree-host-"
_MARK = "owner"
_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp makes private directories below it


def make_directory(mark: str, storage: Storage) -> Path:
    """A fresh one, for this process and its user only."""
    place = memory_place() if storage == "memory" else None
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
    (directory / _MARK).symlink_to(mark)
    (directory / "home").mkdir()
    (directory / "tmp").mkdir()
    return directory


def memory_place() -> str | None:
    """Directory in memory for files on this machine; None: none that programs can run from.

    Others keep their files in memory, so the reference must: one on a disk would flatter them.
    """
    try:
        return None if os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC or not os.access(_MEMORY, os.W_OK) else _MEMORY
    except OSError:
        return None


async def sweep_orphans() -> None:
    """Remove what dead owners left: in a thread, if there is any. What resists, or goes away meanwhile, is no failure."""
    for place in {tempfile.gettempdir(), memory_place() or tempfile.gettempdir()}:
        for directory in Path(place).iterdir():
            if directory.name.startswith(_PREFIX) and _is_orphan(directory):
                with suppress(OSError):
                    await in_thread(delete_tree, directory)


def _is_orphan(directory: Path) -> bool:
    """Only our own user's are looked at: anybody may put a directory with such a name and mark into /tmp."""
    try:
        return directory.lstat().st_uid == os.geteuid() and is_orphan(os.readlink(directory / _MARK))
    except OSError:
        return False
