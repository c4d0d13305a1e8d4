"""Move bytes: the `Transport` interface, and `Descriptors`, its fast form for sockets and pipes.

A transport never blocks the loop and never waits: what cannot be sent now is queued, and whoever sends in bulk asks
`drained` first. It knows nothing of frames but that the parser may refuse bytes, which ends it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from dutyfree.core import fault
from dutyfree.core.errors import Violation
from dutyfree.guest.frame import Parser
from dutyfree.guest.wire import Bytes

Lost = Callable[[str, bool], None]
"""Takes why the stream is over, and whether the agent is to blame (a `Violation`)."""

_IOV_MAX: Final = 64


class Transport(Protocol):
    """A byte stream to the agent."""

    def start(self, parser: Parser, lost: Lost) -> None:
        """Deliver what comes to `parser` (by `room`/`advance` or `feed`); call `lost` once if the stream ends."""
        ...

    def send(self, *parts: Bytes) -> None:
        """Send the parts in order, now or queued. They must not change until they have left. Ignored once closed."""
        ...

    async def drained(self) -> None:
        """Return when nothing is queued any more, or the transport is closed."""
        ...

    def close(self) -> None:
        """Stop, drop what is queued, wake who waits. `lost` is not called. Calling it twice is fine."""
        ...

    def disown(self) -> None:
        """In a forked child: close the child's descriptors and touch nothing else. See `core.home`."""
        ...


class Descriptors:
    """A connected stream socket, or a descriptor to read from and one to write to. Owns and closes them."""

    def __init__(self, source: socket.socket | tuple[int, int]) -> None:
        if isinstance(source, socket.socket):
            self._in = self._out = source.detach()
        else:
            self._in, self._out = source
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Bytes] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False
        self._parser: Parser
        self._lost: Lost = _nobody

    def start(self, parser: Parser, lost: Lost) -> None:
        """Watch the stream from now on."""
        self._parser = parser
        self._lost = lost
        self._loop.add_reader(self._in, self._readable)

    def send(self, *parts: Bytes) -> None:
        """One system call, if the kernel has room."""
        if self._closed:
            return
        if self._queue:
            self._queue.extend(parts)
            return
        try:
            fault.at("dutyfree.agent.send")
            sent = os.write(self._out, parts[0]) if len(parts) == 1 else os.writev(self._out, parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            # Reported from the loop: the caller is in the middle of its own bookkeeping.
            self._loop.call_soon(self._deaf, os.strerror(error.errno or 0))
            return
        if sent != sum(map(len, parts)):
            self._queue.extend(parts)
            self._drop(sent)
            self._loop.add_writer(self._out, self._writable)

    async def drained(self) -> None:
        """Wait for the queue to empty."""
        if self._queue and not self._closed:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Close the descriptors."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._in)
        self._loop.remove_writer(self._out)
        os.close(self._in)
        if self._out != self._in:
            os.close(self._out)
        self._queue.clear()
        self._lost = _nobody  # no cycle stays behind: see `Link._break`
        self._wake()

    def disown(self) -> None:
        """Close the child's descriptors, so that the sandbox sees its owner's end.

        Not by the loop: its epoll is the owner's, too.
        """
        if not self._closed:
            self._closed = True
            for fd in {self._in, self._out}:
                os.close(fd)

    def _readable(self) -> bool:
        """Take what is there; False if it was nothing."""
        try:
            fault.at("dutyfree.agent.receive")
            count = os.readv(self._in, (self._parser.room(),))
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(os.strerror(error.errno or 0), False)
            return False
        if not count:
            self._end("the agent's stream has ended", False)
            return False
        try:
            self._parser.advance(count)
        except Violation as violation:
            self._end(str(violation), True)
        return not self._closed

    def _writable(self) -> None:
        try:
            self._drop(os.writev(self._out, [self._queue[i] for i in range(min(len(self._queue), _IOV_MAX))]))
        except BlockingIOError:
            return
        except OSError as error:
            self._deaf(os.strerror(error.errno or 0))
            return
        if not self._queue:
            self._loop.remove_writer(self._out)
            self._wake()

    def _deaf(self, reason: str) -> None:
        """The agent hears nothing any more: first learn what it said at last."""
        while not self._closed and self._readable():
            pass
        self._end(reason, False)

    def _drop(self, sent: int) -> None:
        queue = self._queue
        while queue and sent >= len(queue[0]):
            sent -= len(queue.popleft())
        if sent:
            queue[0] = memoryview(queue[0])[sent:]

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self, reason: str, violation: bool) -> None:
        if not self._closed:
            lost = self._lost
            self.close()
            lost(reason, violation)


def _nobody(_reason: str, _violation: bool) -> None:
    pass
