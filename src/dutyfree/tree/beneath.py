"""`delete_tree`: delete a sandbox's files, however deep: deeper than paths, stacks or descriptor tables allow."""

from __future__ import annotations

import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def delete_tree(path: Path | str) -> None:
    """Delete a directory and all below it, also what its owner has no permission for. Links are not followed.

    Directories are moved to the top before they are emptied: nothing ever goes down more than one level.
    """
    _permit(os.fspath(path), None)
    top = os.open(path, _DIRECTORY)
    try:
        names = (f".{secrets.token_hex(8)}-{number}" for number in itertools.count())
        waiting: list[str] = []
        _empty(top, top, names, waiting)
        while waiting:
            name = waiting.pop()
            directory = os.open(name, _DIRECTORY, dir_fd=top)
            try:
                _empty(directory, top, names, waiting)
            finally:
                os.close(directory)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _empty(directory: int, top: int, names: Iterator[str], waiting: list[str]) -> None:
    with os.scandir(directory) as found:
        entries = list(found)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=directory)
            continue
        _permit(entry.name, directory)
        name = next(names)
        os.rename(entry.name, name, src_dir_fd=directory, dst_dir_fd=top)
        waiting.append(name)


def _permit(name: str, directory: int | None) -> None:
    if os.geteuid() != 0 and stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        with suppress(PermissionError):
            os.chmod(name, 0o700, dir_fd=directory)
