"""`gather`: pieces become one `bytes`, touching its memory once; `Kept`: the head and tail of too many.

The first piece is kept as it is, since most outputs are one piece. More go into a `BytesIO`, which hands out its own
buffer without a copy: for large results fresh pages cost more than the copying itself. And a million pieces of one byte
are still one object.
"""

from __future__ import annotations

from io import BytesIO

Gathered = bytes | BytesIO


def gather(have: Gathered, piece: memoryview) -> Gathered:
    """`have`, and the piece after it."""
    if isinstance(have, BytesIO):
        have.write(piece)
        return have
    if not have:
        return bytes(piece)
    grown = BytesIO()
    grown.write(have)
    grown.write(piece)
    return grown


def size_of(have: Gathered) -> int:
    """Count the gathered bytes."""
    return have.tell() if isinstance(have, BytesIO) else len(have)


def bytes_of(have: Gathered) -> bytes:
    """All of them."""
    return have.getvalue() if isinstance(have, BytesIO) else have


class Kept:
    """Output up to a limit: its head and its tail."""

    def __init__(self, limit: int) -> None:
        self._tail_size = min(limit // 2, 256 << 10)
        self._head_size = limit - self._tail_size
        self._head = bytearray()
        self._tail = bytearray()
        self.omitted = 0

    def add(self, chunk: bytes) -> None:
        """Add the next piece of the stream."""
        room = self._head_size - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        extra = len(self._tail) - self._tail_size
        if extra > 0:
            self.omitted += extra
            del self._tail[:extra]

    @property
    def gap(self) -> int | None:
        """Position where bytes were left out; None if none were."""
        return len(self._head) if self.omitted else None

    def bytes(self) -> bytes:
        """Head and tail."""
        return bytes(self._head + self._tail)
