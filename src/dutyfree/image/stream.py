"""Streams of rootfs archives: decompressed, bounded, hashed, or made from a directory. Unpacks nothing."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import importlib
import lzma
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from dutyfree.core.errors import Misuse, Unsupported

_CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 16 << 20


class Readable(Protocol):
    """All that unpacking asks of a stream."""

    def read(self, size: int = -1, /) -> bytes:
        """As a file's."""
        ...


class Bounded:
    """A forward-only view of a stream that yields no more than `max_bytes`, and no huge piece at once.

    tarfile reads an extended header in one piece of whatever length the archive claims; file content is read in
    chunks by us. So a huge piece is always an attack.
    """

    def __init__(self, stream: Readable, *, max_bytes: int) -> None:
        self._stream = stream
        self._left = max_bytes
        self._position = 0
        self.last = b"truncated"
        """What the latest read gave: at a proper end, the zeros of the end marker."""

    def read(self, size: int) -> bytes:
        """As a file's."""
        if size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError("an extended header is too large")
        self.last = data = self._stream.read(size)
        if not data:
            self.last = b"truncated"
        self._position += len(data)
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError("the archive is larger than allowed")
        return data

    def tell(self) -> int:
        """As a file's."""
        return self._position

    def seek(self, position: int) -> int:
        """Forward only, which is all that reading members in order needs."""
        if position < self._position:
            raise tarfile.ReadError("the archive's members overlap")
        while self._position < position and self.read(min(position - self._position, _CHUNK_BYTES)):
            pass
        return self._position


class Hashed:
    """A view of a stream that hashes what passes."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        data = self._stream.read(size)
        self.digest.update(data)
        return data


def decompressed(file: IO[bytes]) -> Readable:
    """The plain tar inside an archive, told by its first bytes, not by its name."""
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(file)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(file)
    return file


def _zstd(file: IO[bytes]) -> Readable:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            # In the standard library from Python 3.14 on; before that, what the `oci` extra installs.
            zstd: Any = importlib.import_module(name)
        except ImportError:
            continue
        opened: Readable = zstd.ZstdFile(file)
        return opened
    raise Unsupported("this Python reads no zstd: pip install 'dutyfree[oci]'", driver="native", step="image")


@contextlib.contextmanager
def from_directory(source: Path) -> Iterator[IO[bytes]]:
    """A directory as a plain tar stream, the same for the same tree; written by a thread while it is read."""
    reader_fd, writer_fd = os.pipe()
    failure: list[Exception] = []

    def write() -> None:
        try:
            with os.fdopen(writer_fd, "wb") as pipe, _writing(pipe) as archive:
                archive.add(source, arcname=".", filter=_without_names)
        except BrokenPipeError:
            pass  # the reader gave up, and says why itself
        except (OSError, tarfile.TarError) as error:
            failure.append(error)

    writer = threading.Thread(target=write, name="dutyfree-tar")
    writer.start()
    try:
        with os.fdopen(reader_fd, "rb") as pipe:
            yield pipe
    finally:
        writer.join()
        if failure:
            raise Misuse(f"cannot read {source}: {failure[0]}", field="image", driver="native") from failure[0]


def _writing(pipe: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT)


def _without_names(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uname = member.gname = ""
    return member
