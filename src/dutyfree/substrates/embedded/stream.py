"""Our agent over an exec call: a library that carries a command's input and output carries the agent's stream as well.

One call, as long as the sandbox lives. Between it and the agent's link stands a socket pair, so that the link is the fast
one that every other driver has.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from dutyfree.substrates.api.execution import STDOUT, Ended, Execute, Execution

PIECE = 1 << 16
_KEPT_STDERR = 4096


class Line:
    """One call to a program that talks on its stdin and stdout; `ours` is the other end, and whoever takes it closes it."""

    def __init__(self, execute: Execute, argv: Sequence[str]) -> None:
        self.ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._said = b""
        wanted = Execution(argv=argv, user="0", stdin=self._input())
        self._call = asyncio.ensure_future(self._carry(execute, wanted))

    async def add(self, stream: int, data: bytes) -> None:
        """As a `Sink`: stdout is the stream, the end of stderr is kept for `reason`."""
        if stream == STDOUT:
            await self._loop.sock_sendall(self._theirs, data)
        else:
            self._said = (self._said + data)[-_KEPT_STDERR:]

    async def reason(self) -> str | None:
        """Why the program is gone, as far as somebody said so."""
        if not self._call.done() or self._call.cancelled():
            return None
        error = self._call.exception()
        if error is not None:
            return str(error)
        ended = self._call.result()
        words = ended.refusal or self._said.decode(errors="replace").strip()
        return words or f"it ended with exit code {ended.exit_code}"

    async def close(self) -> None:
        """Let go of the call and wait until it is over. Calling it twice is fine."""
        self._call.cancel()
        await asyncio.wait({self._call})
        if not self._call.cancelled():
            self._call.exception()

    async def _carry(self, execute: Execute, wanted: Execution) -> Ended:
        try:
            with suppress(ConnectionError):  # the link was closed first
                return await execute(wanted, self)
            return Ended(exit_code=0)
        finally:
            self._theirs.close()

    async def _input(self) -> AsyncGenerator[bytes, None]:
        while data := await self._loop.sock_recv(self._theirs, PIECE):
            yield data
