"""A local file or tree as a tar stream, made piece by piece. Runs in threads; knows nothing of the link.

Modes, links and times are kept, owners are not; devices, fifos and sockets are left out. A file that shrinks while it is
read is an error, one that grows is cut.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

PIECE: Final = 512 << 10
_BLOCK: Final = 512


def tree_pieces(root: Path) -> Generator[bytes, None, None]:
    """The tar stream of what is below the directory `root`, in pieces of about `PIECE` bytes."""
    pending = bytearray()
    for part in _parts(root):
        if len(part) >= PIECE and not pending:
            yield part
            continue
        pending += part
        if len(pending) >= PIECE:
            yield bytes(pending)
            pending.clear()
    pending += bytes(2 * _BLOCK)
    yield bytes(pending)


def file_pieces(path: Path) -> Generator[bytes, None, None]:
    """A file's bytes."""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            yield piece


def _parts(root: Path) -> Iterator[bytes]:
    stack = [("", iter(_entries(root, "")))]
    while stack:
        base, entries = stack[-1]
        name = next(entries, None)
        if name is None:
            stack.pop()
            continue
        inside = f"{base}{name}"
        path = root / inside
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode):
            yield from _file(path, inside, status)
        elif stat.S_ISLNK(status.st_mode):
            yield _header(inside, status, tarfile.SYMTYPE, target=str(path.readlink()))
        elif stat.S_ISDIR(status.st_mode):
            yield _header(inside, status, tarfile.DIRTYPE)
            stack.append((f"{inside}/", iter(_entries(root, inside))))


def _entries(root: Path, inside: str) -> list[str]:
    return sorted(path.name for path in (root / inside).iterdir())


def _file(path: Path, inside: str, status: os.stat_result) -> Iterator[bytes]:
    with open(path, "rb", buffering=0, opener=_open_no_link) as file:
        yield _header(inside, status, tarfile.REGTYPE, size=status.st_size)
        yield from content(file, status.st_size)


def content(file: io.FileIO, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes of an open file, padded to a whole block."""
    left = size
    while left:
        piece = file.read(min(left, PIECE))
        if not piece:
            raise OSError(f"{os.fsdecode(file.name)} has become shorter while it was read")
        left -= len(piece)
        yield piece
    yield bytes(-size % _BLOCK)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _header(inside: str, status: os.stat_result, kind: bytes, *, size: int = 0, target: str = "") -> bytes:
    info = tarfile.TarInfo(inside)
    info.type = kind
    info.size = size
    info.linkname = target
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = int(status.st_mtime)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
