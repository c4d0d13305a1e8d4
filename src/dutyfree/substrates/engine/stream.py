"""The engine's own framing of output, undone: 8 bytes of head (stream, size) before each piece of stdout or stderr.

`Demultiplexer` takes bytes in any pieces; `Multiplexed` puts it between a hijacked connection and the agent's link.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from dutyfree.core.errors import Violation
from dutyfree.guest.frame import Parser
from dutyfree.guest.transport import Descriptors, Lost

STDOUT, STDERR = 1, 2

_HEAD = struct.Struct(">BxxxI")
_LARGEST = 64 << 20
_BUFFER = 64 << 10
_KEPT_STDERR = 4096


class Demultiplexer(Parser):
    """Hands on the payload of each frame, as far as it is there, without waiting for the whole frame."""

    __slots__ = ("_buffer", "_head", "_left", "_sink_of", "_stream")

    def __init__(self, sink: Callable[[int, memoryview], None]) -> None:
        """`sink` takes the stream's number and bytes that are valid during the call only."""
        self._buffer = memoryview(bytearray(_BUFFER))
        self._sink_of = sink
        self._head = b""
        self._stream = 0
        self._left = 0

    def room(self) -> memoryview:
        """All of the buffer: nothing is kept in it."""
        return self._buffer

    def advance(self, count: int) -> None:
        """Take apart what came. Raises `Violation` for what is no frame."""
        self.feed(self._buffer[:count])

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """The same for bytes in hand."""
        rest = memoryview(data)
        while rest:
            if self._left:
                piece = rest[: self._left]
                self._left -= len(piece)
                rest = rest[len(piece) :]
                self._sink_of(self._stream, piece)
                continue
            missing = _HEAD.size - len(self._head)
            self._head += bytes(rest[:missing])
            rest = rest[missing:]
            if len(self._head) == _HEAD.size:
                self._stream, self._left = _HEAD.unpack(self._head)
                self._head = b""
                if self._stream > STDERR or self._left > _LARGEST:
                    raise Violation("the engine's stream is not framed as it should be")

    def shrink(self) -> None:
        """The buffer is small already."""


class Multiplexed:
    """A `Transport` over a hijacked connection: the agent's stream is the container's stdin and stdout."""

    def __init__(self, connection: socket.socket, early: bytes) -> None:
        self._inner = Descriptors(connection)
        self._early = early
        self.stderr = b""
        """The end of what came on stderr: why the program did not start, if it did not."""
        self.send = self._inner.send
        self.drained = self._inner.drained
        self.close = self._inner.close
        self.disown = self._inner.disown

    def start(self, parser: Parser, lost: Lost) -> None:
        """Deliver stdout to `parser`."""

        def sink(stream: int, data: memoryview) -> None:
            if stream == STDOUT:
                parser.feed(data)
            else:
                self.stderr = (self.stderr + bytes(data))[-_KEPT_STDERR:]

        apart = Demultiplexer(sink)
        self._inner.start(apart, lost)
        if self._early:
            apart.feed(self._early)
