"""One exec call's websocket: input, output and the final status as numbered channels; and the agent's stream over it.

Each message begins with its channel's number. The last one is a `Status` on channel 3; a server that could not start
anything sends only that.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from dutyfree.core.errors import Violation
from dutyfree.guest.frame import Parser
from dutyfree.guest.transport import Lost
from dutyfree.guest.wire import Bytes

STDIN, STDOUT, STDERR, STATUS = range(4)

_END_OF_INPUT = bytes([255, STDIN])
_PIECE = 1 << 16
_GOODBYE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """End of an exec call, in the server's words."""

    ok: bool
    message: str = ""
    exit_code: int | None = None
    """None: the process was never started, or nobody knows."""


class Channels:
    """A websocket, taken apart."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.status: Status | None = None

    async def receive(self) -> tuple[int, memoryview] | None:
        """The next piece of output; None at the end, when `status` is known if the server told it."""
        while True:
            message = await self._socket.receive()
            if message.type != aiohttp.WSMsgType.BINARY:
                return None
            data = memoryview(message.data)
            if len(data) < 2:
                continue
            if data[0] == STATUS:
                self.status = _status(bytes(data[1:]))
                continue
            if data[0] in (STDOUT, STDERR):
                return data[0], data[1:]

    async def send(self, data: Bytes) -> None:
        """Input; waits while the server takes no more. `ConnectionError` if the stream is over."""
        view = memoryview(data)
        for at in range(0, len(view), _PIECE):
            await self._socket.send_bytes(b"\0" + view[at : at + _PIECE])

    async def end_input(self) -> None:
        """The command reads to the end of its input."""
        await self._socket.send_bytes(_END_OF_INPUT)

    async def close(self) -> None:
        """Drop it. Calling it twice is fine."""
        with suppress(aiohttp.ClientError, OSError):
            await self._socket.close()

    async def finish(self) -> None:
        """End the input, wait (not for ever) until the process is gone, then drop it."""
        with suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
            async with asyncio.timeout(_GOODBYE_S):
                await self.end_input()
                while await self.receive() is not None:
                    pass
        await self.close()


def _status(data: bytes) -> Status:
    try:
        said: dict[str, Any] = json.loads(data)
    except ValueError:
        return Status(ok=False, message=data.decode(errors="replace"))
    if said.get("status") == "Success":
        return Status(ok=True, exit_code=0)
    causes = (said.get("details") or {}).get("causes") or []
    codes = [cause.get("message", "") for cause in causes if cause.get("reason") == "ExitCode"]
    code = int(codes[0]) if codes and codes[0].isdecimal() else None
    return Status(ok=False, message=str(said.get("message", "")), exit_code=code)


class AgentStream:
    """A `Transport`: the agent's stream is an exec call's stdin and stdout."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Bytes] = deque()
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._end: asyncio.Task[None] | None = None

    def start(self, parser: Parser, lost: Lost) -> None:
        """Deliver stdout to `parser` from now on."""

        def over(reason: str, violation: bool) -> None:
            if not self._closed:
                self.close()
                lost(reason, violation)

        work: list[Coroutine[Any, Any, None]] = [self._read(parser, over), self._write(over)]
        self._tasks = [self._loop.create_task(one) for one in work]

    def send(self, *parts: Bytes) -> None:
        """Queue it; the writer takes all there is at once."""
        if self._closed:
            return
        self._queue.extend(parts)
        self._empty.clear()
        self._filled.set()

    async def drained(self) -> None:
        """Wait for the queue to empty."""
        await self._empty.wait()

    def close(self) -> None:
        """Begin to end it; `gone` waits for the end."""
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        self._empty.set()
        self._end = self._loop.create_task(self._finish())

    def disown(self) -> None:
        """Say nothing more: the connection is the owner's."""
        self._closed = True

    async def gone(self) -> None:
        """Nothing of it is left: the agent has ended with what it ran, as far as the server tells."""
        self.close()
        if self._end is not None:
            await self._end

    async def _finish(self) -> None:
        # Who calls `close` may be one of these tasks itself, in its last step.
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._channels.finish()

    async def _read(self, parser: Parser, over: Lost) -> None:
        try:
            while (piece := await self._channels.receive()) is not None:
                if piece[0] == STDOUT:
                    parser.feed(piece[1])
        except Violation as violation:
            over(str(violation), True)
            return
        over("the agent's stream has ended", False)

    async def _write(self, over: Lost) -> None:
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._queue:
                    parts = [self._queue.popleft() for _ in range(len(self._queue))]
                    await self._channels.send(parts[0] if len(parts) == 1 else b"".join(parts))
                self._empty.set()
        except (ConnectionError, aiohttp.ClientError) as error:
            over(f"the agent's stream is broken: {error}", False)
