"""`agent_by_exec`: our agent over one exec call that carries bytes both ways while it runs.

The program is the first part of the call's input, and everything after it is the agent's stream. A socket stands
between that stream and the link, which knows nothing of the exec call.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

from dutyfree.core.errors import DutyfreeError
from dutyfree.driver.agent import agent_program
from dutyfree.driver.exec_call import STDOUT, ExecCall, Execute

OURS = "/dev /run /tmp"
"""Where files of ours can be, whichever is the first that takes one: /dev and /run are never the image's own."""

_INSTALL = f"""\
umask 077
for d in {OURS}; do p=$d/.dutyfree-agent; ( : >$p ) 2>/dev/null && break; done
head -c "$0" >$p && chmod 500 $p && exec $p --container
"""
_PIECE = 1 << 18
_LONGEST_COMPLAINT = 2000


class ExecStream:
    """The streams of an exec call behind a socket, `stream`, which belongs to whoever takes it.

    A body that has one sets `greets_first`, gives `stream` from `agent`, and awaits `close` in `remove`.
    """

    def __init__(self, execute: Execute, argv: Sequence[str], ahead: bytes = b"") -> None:
        self._loop = asyncio.get_running_loop()
        self.stream, self._inner = socket.socketpair()
        self._inner.setblocking(False)
        self._complaint = b""
        self._ending: asyncio.Future[None] | None = None
        self._task = asyncio.create_task(self._carry(execute, ExecCall(argv, user="0", stdin=self._input(ahead))))

    async def add(self, stream: int, data: bytes) -> None:
        """Send the agent's words on to the link; keep what its shell complains of."""
        if stream == STDOUT:
            with suppress(ConnectionError):
                await self._loop.sock_sendall(self._inner, data)
        else:
            self._complaint = (self._complaint + data)[-_LONGEST_COMPLAINT:]

    async def cause(self) -> str | None:
        """Tell why the stream has ended; None: it has not, or nobody knows."""
        return self._complaint.decode(errors="replace").strip() or None

    def after(self, end: Callable[[], Awaitable[None]]) -> None:
        """Call `end` when the exec call ends by itself: a paid machine without its agent would only cost."""

        async def finish() -> None:
            with suppress(DutyfreeError):  # whoever destroys it is told
                await end()

        def over(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                self._ending = asyncio.ensure_future(finish())

        self._task.add_done_callback(over)

    async def close(self) -> None:
        """Let go of the exec call. Calling it twice is fine."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _carry(self, execute: Execute, call: ExecCall) -> None:
        try:
            end = await execute(call, self)
            self._complaint = self._complaint or (end.refusal or f"exit code {end.exit_code}").encode()
        except DutyfreeError as error:
            self._complaint = error.message.encode()
        finally:
            self._inner.close()

    async def _input(self, ahead: bytes) -> AsyncGenerator[bytes, None]:
        if ahead:
            yield ahead
        with suppress(ConnectionError):
            while data := await self._loop.sock_recv(self._inner, _PIECE):
                yield data


def agent_by_exec(execute: Execute, *, driver: str) -> ExecStream:
    """Send the agent ahead of its stream, put it where it can be, and start it."""
    content = agent_program(driver).read_bytes()
    return ExecStream(execute, ["sh", "-c", _INSTALL, str(len(content))], content)
