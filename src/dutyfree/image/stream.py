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
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol

from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.image.root import Progress

_CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 16 << 20
_AHEAD = 4
"""Pieces."""


class Readable(Protocol):
    """All that unpacking asks of a stream."""

    def read(self, size: int = -1, /) -> bytes:
        """As a file's."""
        ...


class Told:
    """A view of a stream that tells how much passes."""

    def __init__(self, stream: Readable, progress: Progress) -> None:
        self._stream = stream
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        data = self._stream.read(size)
        self._progress.advance(len(data))
        return data


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


class Ahead:
    """A stream that a thread of its own reads, some pieces ahead: decompressing and hashing go on beside unpacking."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._pool = ThreadPoolExecutor(1, "dutyfree-read")
        self._coming = deque(self._pool.submit(stream.read, _CHUNK_BYTES) for _ in range(_AHEAD))
        self._piece = memoryview(b"")

    def close(self) -> None:
        """End the thread. What it has read already is lost."""
        self._pool.shutdown(cancel_futures=True)
        self._coming.clear()

    def read(self, size: int = _CHUNK_BYTES, /) -> bytes:
        """Exactly so many bytes; fewer at the end only. Raises what reading raised."""
        if len(self._piece) < size:
            return b"".join(self._pieces(size))
        taken, self._piece = self._piece[:size], self._piece[size:]
        return bytes(taken)

    def _pieces(self, size: int) -> Iterator[memoryview]:
        while size:
            if not self._piece:
                data = self._coming.popleft().result() if self._coming else b""
                if not data:
                    self._coming.clear()
                    return
                self._coming.append(self._pool.submit(self._stream.read, _CHUNK_BYTES))
                self._piece = memoryview(data)
            taken, self._piece = self._piece[:size], self._piece[size:]
            size -= len(taken)
            yield taken


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


def decompressed(file: IO[bytes], through: Readable | None = None) -> Readable:
    """The plain tar inside an archive, told by its first bytes, not by its name.

    through: a view of the same file, which is read instead of it. Without one, a plain file is answered itself.
    """
    start = file.read(6)
    file.seek(0)
    packed: Any = file if through is None else through
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=packed)
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(packed)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(packed)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(packed)
    plain: Readable = packed
    return plain


def _zstd(file: IO[bytes]) -> Readable:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            # In the standard library from Python 3.14 on; before that, what the `oci` extra installs.
            zstd: Any = importlib.import_module(name)
        except ImportError:
            continue
        opened: Readable = zstd.ZstdFile(file)
        return opened
    raise Unsupported("this Python reads no zstd: pip install 'dutyfree[oci]'", step="image")


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
            raise Misuse(f"cannot read {source}: {failure[0]}", field="image") from failure[0]


def _writing(pipe: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT)


def _without_names(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uname = member.gname = ""
    return member
