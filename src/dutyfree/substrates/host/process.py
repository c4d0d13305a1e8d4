"""`HostProcess`: a command whose output is watched as it comes.

Nothing is buffered here: pipes are read when the caller asks, so a caller who stops reading stops the writer.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from dutyfree.core.contract import DEFAULT_OUTPUT_LIMIT_BYTES, TerminalSize
from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.core.home import own, seal
from dutyfree.core.outcome import Outcome, StreamName
from dutyfree.core.pending import finish
from dutyfree.core.spec import Content
from dutyfree.driver.exec_call import CappedOutput
from dutyfree.guest.argument import input_bytes, whole
from dutyfree.substrates.host.child import CHUNK_BYTES, Child, gone, settle_once

_NAMES: tuple[StreamName, StreamName] = ("stdout", "stderr")


class HostProcess:
    """A `core.contract.Process`."""

    def __init__(self, child: Child, stdin: int | None, called_ns: int, ended: Callable[[], None]) -> None:
        self._child = child
        self._stdin = stdin
        self._called_ns = called_ns
        self._ended = ended
        self._open = dict(zip(child.pipes, _NAMES, strict=False))
        self._came: deque[tuple[StreamName, bytes]] = deque()
        self._outcome: Outcome | None = None
        self._released = False
        own(self)

    def disown(self) -> None:
        """In a forked child: close its ends of the pipes, so that the command sees the owner's."""
        for fd in (*self._child.pipes, *(() if self._stdin is None else (self._stdin,))):
            os.close(fd)
        seal(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await finish(self._finish())

    def __aiter__(self) -> Self:
        """Chunks until both streams end, or the command has and nothing is left in the pipes."""
        return self

    async def __anext__(self) -> tuple[StreamName, bytes]:
        """The next chunk. Cancelled, it has taken none: ask again."""
        while not self._came and self._open:
            over = self._child.end_ns != 0
            self._came.extend((name, data) for name, data in map(self._read, list(self._open)) if data)
            if not self._came and over:
                break
            if not self._came and self._open:
                await self._readable()
        if not self._came:
            raise StopAsyncIteration
        return self._came.popleft()

    async def write(self, data: Content) -> None:
        """Wait until the pipe has taken all of it. A command that reads no more loses it silently, as in a shell."""
        if self._stdin is None:
            raise Misuse("stdin is closed, or was given in full at the start", field="data")
        view = memoryview(input_bytes(data, "data"))
        while view and self._stdin is not None and self._child.end_ns == 0:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await self._writable(self._stdin)
            except BrokenPipeError:
                return

    async def close_stdin(self) -> None:
        """End of input."""
        if self._stdin is not None:
            asyncio.get_running_loop().remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    async def signal(self, number: int) -> None:
        """To the process group. Nothing happens once the command has ended."""
        whole("number", number, 1, 64)
        if self._child.end_ns == 0:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.Signals(number) if number < 32 else number)

    async def resize(self, size: TerminalSize) -> None:
        """There never is a terminal here."""
        del size
        raise Unsupported("terminal is not offered", driver="host")

    async def kill(self) -> None:
        """The whole tree, as far as it is found; `wait` then gives ``cancelled``."""
        self._child.kill("cancelled")
        await gone(self._child)

    async def wait(self) -> Outcome:
        """The outcome; output that nobody iterated is in it."""
        if self._outcome is not None:
            return self._outcome
        streams = {name: CappedOutput(DEFAULT_OUTPUT_LIMIT_BYTES) for name in _NAMES}
        try:
            async for name, data in self:
                streams[name].add(data)
            await gone(self._child)
        except asyncio.CancelledError:
            await self.kill()
            raise
        finally:
            if self._child.end_ns != 0:
                await self.release()
        self._outcome = self._child.outcome(self._called_ns, streams["stdout"], streams["stderr"])
        return self._outcome

    async def _finish(self) -> None:
        await self.kill()
        await self.wait()

    async def release(self) -> None:
        """Once the command is gone: give up its pipes. Calling it twice is fine."""
        if self._released:
            return
        self._released = True
        await self.close_stdin()
        self._open.clear()
        self._child.close()
        self._ended()

    def _read(self, fd: int) -> tuple[StreamName, bytes]:
        name = self._open[fd]
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return name, b""
        if not data:
            del self._open[fd]
        return name, data

    async def _readable(self) -> None:
        """Until a pipe has something or the command has ended."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        watched = list(self._open)
        for fd in watched:
            loop.add_reader(fd, settle_once, ready)
        try:
            await asyncio.wait([ready, self._child.exited], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for fd in watched:
                loop.remove_reader(fd)

    async def _writable(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(fd, settle_once, ready)
        try:
            await asyncio.wait([ready, self._child.exited], return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_writer(fd)
