"""Our agent over one exec call: for vendors whose exec calls carry bytes, both ways, while they run.

The program is the first of the call's input, and everything after it is the agent's stream. A socket stands between that and
the link, which then knows nothing of the vendor.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from dutyfree.core.errors import DutyfreeError
from dutyfree.guest.sandbox import AgentSandbox
from dutyfree.substrates.api.execution import STDOUT, Execute, Execution
from dutyfree.substrates.boot import Birth, agent_program, boot_agent

OURS = "/dev /run /tmp"
"""Where files of ours can be, whichever is the first that takes one: /dev and /run are never the image's own."""

_INSTALL = f"""\
umask 077
for d in {OURS}; do p=$d/.dutyfree-agent; ( : >$p ) 2>/dev/null && break; done
head -c "$0" >$p && chmod 500 $p && exec $p --container
"""
_PIECE = 1 << 18
_LONGEST_COMPLAINT = 2000


async def boot_by_exec(birth: Birth, execute: Execute) -> AgentSandbox:
    """Put the agent there and take over its stream; on failure or cancellation everything is released."""
    bridge = Bridge(execute, agent_program(birth.driver).read_bytes())
    end = birth.release

    async def release() -> None:
        await bridge.close()
        await end()

    birth.release = release
    birth.failure = bridge.why
    box: AgentSandbox = await boot_agent(birth, bridge.stream)
    bridge.after(box.destroy)
    return box


class Bridge:
    """Between a socket and the streams of an exec call. Its `stream` belongs to whoever takes it."""

    def __init__(self, execute: Execute, program: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self.stream, self._inner = socket.socketpair()
        self._inner.setblocking(False)
        self._complaint = b""
        self._ending: asyncio.Future[None] | None = None
        argv = ["sh", "-c", _INSTALL, str(len(program))]
        self._task = asyncio.create_task(self._carry(execute, Execution(argv=argv, stdin=self._input(program))))

    async def add(self, stream: int, data: bytes) -> None:
        """A `Sink`: the agent's words go on to the link, what its shell complains of is kept."""
        if stream == STDOUT:
            with suppress(ConnectionError):
                await self._loop.sock_sendall(self._inner, data)
        else:
            self._complaint = (self._complaint + data)[-_LONGEST_COMPLAINT:]

    async def why(self) -> str | None:
        """Why the stream has ended; None: it has not, or nobody knows."""
        return self._complaint.decode(errors="replace").strip() or None

    def after(self, end: Callable[[], Awaitable[None]]) -> None:
        """What is done when the exec call ends by itself: a machine without its agent would only cost."""

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

    async def _carry(self, execute: Execute, wanted: Execution) -> None:
        try:
            await execute(wanted, self)
        except DutyfreeError as error:
            self._complaint = error.message.encode()
        finally:
            self._inner.close()

    async def _input(self, program: bytes) -> AsyncGenerator[bytes, None]:
        yield program
        with suppress(ConnectionError):
            while data := await self._loop.sock_recv(self._inner, _PIECE):
                yield data
