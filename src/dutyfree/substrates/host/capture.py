"""`Capture`: a stream's bytes up to a limit; beyond it the head and the tail stay and the middle goes."""

from __future__ import annotations


class Capture:
    """Collects one stream."""

    __slots__ = ("_head", "_limit", "_tail", "total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.total_bytes = 0
        self._limit = limit_bytes
        self._head = bytearray()
        self._tail: bytearray | None = None

    def add(self, data: bytes) -> None:
        """Keep what fits."""
        self.total_bytes += len(data)
        if self._tail is None:
            self._head += data
            if self.total_bytes > self._limit:
                kept = self._limit // 2
                self._tail = self._head[kept:]
                del self._head[kept:]
        else:
            self._tail += data
        if self._tail is not None and len(self._tail) > 2 * self._room + 65536:
            del self._tail[: len(self._tail) - self._room]

    @property
    def over(self) -> bool:
        """More came than the limit."""
        return self.total_bytes > self._limit

    @property
    def omitted_bytes(self) -> int:
        """How many bytes of the middle went."""
        return max(0, self.total_bytes - self._limit)

    def kept(self) -> bytes:
        """The bytes, or their head and tail."""
        if self._tail is None:
            return bytes(self._head)
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._room) :])

    @property
    def _room(self) -> int:
        return self._limit - self._limit // 2
