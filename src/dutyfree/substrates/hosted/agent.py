"""Our agent over one exec call: for vendors whose exec calls carry bytes, both ways, while they run.

Where machines do not have it, the program is the first of the call's input, and everything after it is the agent's
stream. A socket stands between that and the link, which then knows nothing of the vendor.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

from dutyfree.core.errors import DutyfreeError
from dutyfree.driver.exec_call import STDOUT, ExecCall, Execute
from dutyfree.guest.sandbox import AgentSandbox
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


async def boot_by_exec(birth: Birth, execute: Execute, program: str | None = None) -> AgentSandbox:
    """Start the agent and take over its stream; on failure or cancellation everything is released.

    `program` is its path where every machine has it; None: it goes ahead of the stream, and is put there.
    """
    if program is None:
        content = agent_program(birth.driver).read_bytes()
        bridge = Bridge(execute, ["sh", "-c", _INSTALL, str(len(content))], content)
    else:
        bridge = Bridge(execute, [program])
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

    def __init__(self, execute: Execute, argv: Sequence[str], ahead: bytes = b"") -> None:
        self._loop = asyncio.get_running_loop()
        self.stream, self._inner = socket.socketpair()
        self._inner.setblocking(False)
        self._complaint = b""
        self._ending: asyncio.Future[None] | None = None
        wanted = ExecCall(argv=argv, user="0", stdin=self._input(ahead))
        self._task = asyncio.create_task(self._carry(execute, wanted))

    async def add(self, stream: int, data: bytes) -> None:
        """A `Sink`: the agent's words go on to the link, what its shell complains of is kept."""
        if stream == STDOUT:
            with suppress(ConnectionError):
                await self._loop.sock_sendall(self._inner, data)
        else:
            self._complaint = (self._complaint + data)[-_LONGEST_COMPLAINT:]

    async def why(self) -> str | None:
        """Reason why the stream has ended; None: it has not, or the reason is unknown."""
        return self._complaint.decode(errors="replace").strip() or None

    def after(self, end: Callable[[], Awaitable[None]]) -> None:
        """Set the function to call when the exec call ends by itself: a sandbox without its agent would only cost."""

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

    async def _carry(self, execute: Execute, wanted: ExecCall) -> None:
        try:
            ended = await execute(wanted, self)
            self._complaint = self._complaint or (ended.refusal or f"exit code {ended.exit_code}").encode()
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
