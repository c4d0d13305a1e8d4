"""A local file or tree as a tar stream, made piece by piece. Runs in threads; knows nothing of the link.

Modes, links and times are kept, owners are not; devices, fifos and sockets are left out. A file that shrinks while it
is read is an error, one that grows is cut.
"""

from __future__ import annotations

import os
import stat
import struct
import tarfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

PIECE: Final = 512 << 10
_BLOCK: Final = 512
_HEADER: Final = struct.Struct("100s8s8s8s12s12s8sc100s8s247x")
_NAME: Final = 100
_LARGE: Final = 8 << 30
"""From here on a field of eleven octal digits does not do."""
_NOBODY: Final = b"%07o" % 0


def tree_pieces(root: Path) -> Generator[bytes, None, None]:
    """The tar stream of what is below the directory `root`, in pieces of about `PIECE` bytes."""
    pending: list[bytes] = []
    size = 0
    for part in _parts(os.fspath(root)):
        pending.append(part)
        size += len(part)
        if size >= PIECE:
            yield b"".join(pending)
            pending.clear()
            size = 0
    pending.append(bytes(2 * _BLOCK))
    yield b"".join(pending)


def file_pieces(path: Path) -> Generator[bytes, None, None]:
    """A file's bytes."""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            yield piece


def _parts(root: str) -> Iterator[bytes]:
    stack = [("", iter(sorted(os.listdir(root))))]
    while stack:
        base, names = stack[-1]
        name = next(names, None)
        if name is None:
            stack.pop()
            continue
        inside = base + name
        path = f"{root}/{inside}"
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            yield from _file(path, inside, status)
        elif kind == stat.S_IFLNK:
            yield _header(inside, status, tarfile.SYMTYPE, target=os.readlink(path))
        elif kind == stat.S_IFDIR:
            yield _header(f"{inside}/", status, tarfile.DIRTYPE)
            stack.append((f"{inside}/", iter(sorted(os.listdir(path)))))


def _file(path: str, inside: str, status: os.stat_result) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield _header(inside, status, tarfile.REGTYPE, size=status.st_size)
        yield from content(fd, status.st_size, path)
    finally:
        os.close(fd)


def content(fd: int, size: int, path: str) -> Iterator[bytes]:
    """Exactly `size` bytes of an open file, padded to a whole block."""
    left = size
    while left:
        piece = os.read(fd, min(left, PIECE))
        if not piece:
            raise OSError(f"{path} has become shorter while it was read")
        left -= len(piece)
        yield piece
    yield bytes(-size % _BLOCK)


def _header(inside: str, status: os.stat_result, kind: bytes, *, size: int = 0, target: str = "") -> bytes:
    mode, mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    name, link = os.fsencode(inside), os.fsencode(target)
    if (
        len(name) <= _NAME
        and len(link) <= _NAME
        and size < _LARGE
        and 0 <= mtime < _LARGE
        and name.isascii()
        and link.isascii()
    ):
        return _plain_header(name, mode, size, mtime, kind, link)
    info = tarfile.TarInfo(inside)
    info.type, info.size, info.linkname, info.mode, info.mtime = kind, size, target, mode, mtime
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _plain_header(name: bytes, mode: int, size: int, mtime: int, kind: bytes, link: bytes) -> bytes:
    """Make the header that `tarfile` would make, in a tenth of its time: small files are mostly headers."""
    fields = [
        name,
        b"%07o" % mode,
        _NOBODY,
        _NOBODY,
        b"%011o" % size,
        b"%011o" % mtime,
        b" " * 8,
        kind,
        link,
        b"ustar\x0000",
    ]
    block = _HEADER.pack(*fields)
    fields[6] = b"%06o\0 " % sum(block)
    return _HEADER.pack(*fields)
