"""Two pairs of streams that are connected within this process: no descriptors, no copies through the kernel."""

from __future__ import annotations

import asyncio
from typing import Final

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_LIMIT: Final = 64 << 10


def connected() -> tuple[Streams, Streams]:
    """Both ends. What one end writes, the other reads; a reader that falls behind holds up `drain` at the other end."""
    one, other = _End(), _End()
    one.peer, other.peer = other, one
    return one.streams, other.streams


class _End(asyncio.Transport):
    """One end's transport. Its protocol is asyncio's own for streams."""

    peer: _End

    def __init__(self) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LIMIT, loop=loop)
        self.protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        self._loop = loop
        self._ended = False
        self._closed = False
        self.protocol.connection_made(self)
        self.streams: Streams = (reader, asyncio.StreamWriter(self, self.protocol, reader, loop))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand the bytes to the other end's reader."""
        if data and not self._ended and not self.peer.is_closing():
            self.peer.protocol.data_received(bytes(data))

    def can_write_eof(self) -> bool:
        """The directions end apart from each other."""
        return True

    def write_eof(self) -> None:
        """End this direction."""
        if not self._ended:
            self._ended = True
            if not self.peer.is_closing():
                self.peer.protocol.eof_received()

    def pause_reading(self) -> None:
        """Our reader has enough: the other end's `drain` waits."""
        self.peer.protocol.pause_writing()

    def resume_reading(self) -> None:
        """Our reader wants more."""
        self.peer.protocol.resume_writing()

    def is_closing(self) -> bool:
        """Whether this end was closed."""
        return self._closed

    def close(self) -> None:
        """End both directions: the other end reads what was written and then the end; its writes fail."""
        if self._closed:
            return
        self.write_eof()
        self._closed = True
        self._loop.call_soon(self.protocol.connection_lost, None)
        if not self.peer.is_closing():
            # Whoever waits in `drain` there would wait for a reader that has gone.
            self._loop.call_soon(self.peer.lost)

    abort = close

    def lost(self) -> None:
        """The other end has gone."""
        if not self._closed:
            self._closed = True
            self.protocol.connection_lost(None)
