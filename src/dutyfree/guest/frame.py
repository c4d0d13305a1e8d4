"""`Parser`: bytes in any pieces become frames, parsed in place. It holds at most one frame and a little more.

Refuses sizes over the protocol's limit as soon as the header is there. What the frames mean is not its business.
"""

from __future__ import annotations

from collections.abc import Callable

from dutyfree.core.errors import Violation
from dutyfree.guest.wire import HEADER, HEADER_SIZE, MAX_PAYLOAD

Sink = Callable[[int, int, int, memoryview], None]
"""Takes channel, kind, flags and the payload, which is valid during the call only."""

SMALL = 16 << 10
LARGE = MAX_PAYLOAD + HEADER_SIZE

_unpack = HEADER.unpack_from


class Parser:
    """Owns the receive buffer: fill `room()`, then say how much came by `advance`; or `feed` bytes."""

    __slots__ = ("_end", "_sink", "_view")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._view = memoryview(bytearray(SMALL))
        self._end = 0

    def room(self) -> memoryview:
        """Buffer for the next bytes; never empty."""
        return self._view[self._end :] if self._end else self._view

    def advance(self, count: int) -> None:
        """`count` bytes were put into `room()`: hand on the frames that are whole. Raises `Violation`."""
        view, sink, at = self._view, self._sink, 0
        filled = end = self._end + count
        need = 0
        while end - at >= HEADER_SIZE:
            size, channel, kind, flags, zero = _unpack(view, at)
            if size > MAX_PAYLOAD or zero:
                raise Violation(f"a frame of type {kind:#x} claims {size} bytes")
            start = at + HEADER_SIZE
            if start + size > end:
                need = HEADER_SIZE + size
                break
            at = start + size
            sink(channel, kind, flags, view[start:at])
        self._end = end - at
        if need > len(view) or (filled == len(view) and filled < LARGE):
            self._grow(at, need)
        elif at and self._end:
            # Slices of one buffer may overlap: a memoryview assignment moves as memmove does.
            view[: self._end] = view[at:end]

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """The same for bytes that are already in hand. Raises `Violation`."""
        rest = memoryview(data).cast("B")
        while rest:
            room = self.room()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            self.advance(count)
            rest = rest[count:]

    def shrink(self) -> None:
        """Give large memory back while nothing is expected. Keeps what is not yet a frame."""
        if len(self._view) > SMALL and self._end == 0:
            self._view = memoryview(bytearray(SMALL))

    def close(self) -> None:
        """Nobody wants frames any more: let go of who did, so that both are freed when the last user is."""
        self._sink = _nobody

    def _grow(self, at: int, need: int) -> None:
        """A filled buffer means that more was waiting: take it in larger pieces from now on."""
        old = self._view
        self._view = memoryview(bytearray(min(LARGE, max(4 * len(old), need))))
        self._view[: self._end] = old[at : at + self._end]


def _nobody(_channel: int, _kind: int, _flags: int, _payload: memoryview) -> None:
    pass
