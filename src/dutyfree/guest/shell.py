"""`AgentShell`: a persistent shell over a link. One script at a time; the agent keeps the shell itself.

A script and its input travel in one request: together they are at most 1 MiB.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Self

from dutyfree.core.contract import DEFAULT_OUTPUT_LIMIT_BYTES
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Content, Inside, User
from dutyfree.core.timeline import now_ns
from dutyfree.guest.argument import (
    check_request,
    deadline_ns,
    env_items,
    input_bytes,
    optional_path,
    output_limit,
    script_bytes,
    user_bytes,
)
from dutyfree.guest.channel import Opening
from dutyfree.guest.command import WINDOW_SLACK, Run
from dutyfree.guest.link import Link
from dutyfree.guest.process import OUTPUT_WINDOW, AgentProcess, Stream
from dutyfree.guest.reply import check_empty
from dutyfree.guest.wire import (
    MAX_PAYLOAD,
    OPENED,
    SHELL,
    SHELL_RUN,
    SIGNAL,
    STREAM,
    TO_THE_END,
    U32,
    frame,
    packed,
    shell,
    shell_run,
)


class Session(Opening):
    """The shell's own channel: open until the shell has ended."""

    __slots__ = ()

    def frame(self, kind: int, flags: int, payload: memoryview) -> None:
        """OPENED, once; then only the end."""
        if kind == OPENED and not self.opened.done():
            check_empty("OPENED", payload)
            self.opened.set_result(None)
        else:
            super().frame(kind, flags, payload)


class AgentShell:
    """`Shell` over a link."""

    def __init__(self, link: Link, session: Session) -> None:
        self._link = link
        self._session = session
        self._running: Run | Stream | None = None
        self._ended = False

    async def run(
        self,
        script: str,
        *,
        timeout_s: float | None = None,
        stdin: Content = b"",
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Outcome:
        """Run a script in the shell."""
        start_ns = now_ns()
        text = script_bytes("script", script)
        limit = output_limit(output_limit_bytes)
        data = packed(input_bytes(stdin))
        deadline = deadline_ns(timeout_s)
        await self._free()
        window = 2 * limit + WINDOW_SLACK
        payload = shell_run(self._session.number, 0, deadline, limit, window, text) + data
        _check_size(payload, "stdin" if len(data) > len(text) else "script")
        call = Run(self._link, limit)
        self._running = call
        call.request(SHELL_RUN, payload, timeout_s)
        await self._link.finished(call)
        if call.exit is not None and call.exit.shell_ended:
            self._ended = True
        return call.outcome(start_ns)

    async def start(self, script: str, *, timeout_s: float | None = None, stdin: Content = b"") -> AgentProcess:
        """Run a script in the shell, and watch it."""
        start_ns = now_ns()
        text = script_bytes("script", script)
        data = packed(input_bytes(stdin))
        deadline = deadline_ns(timeout_s)
        await self._free()
        payload = shell_run(self._session.number, STREAM, deadline, TO_THE_END, OUTPUT_WINDOW, text) + data
        _check_size(payload, "stdin" if len(data) > len(text) else "script")
        channel = self._running = Stream(self._link)
        self._link.open(channel, SHELL_RUN, payload)
        self._link.watch(channel, timeout_s)
        return AgentProcess(channel, start_ns, writable=False, terminal=False)

    async def interrupt(self) -> None:
        """Stop the running script."""
        if self.alive:
            self._link.send(frame(self._session.number, SIGNAL, U32.pack(signal.SIGINT)))

    @property
    def alive(self) -> bool:
        """It can take another `run`."""
        last = self._running
        if last is not None and last.exit is not None and last.exit.shell_ended:
            return False
        return not self._ended and not self._session.over.done()

    async def close(self) -> None:
        """End the shell and wait until it is gone. On a lost link it is gone already."""
        self._ended = True
        self._link.cancel(self._session)
        await asyncio.shield(self._session.over)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _free(self) -> None:
        """A script that was taken back may still be dying; one that runs is the caller's mistake."""
        running = self._running
        if running is not None and self._link.has(running):
            if not running.abandoned:
                raise Misuse("the shell is running a script; it takes one at a time", sandbox=self._link.sandbox)
            await running.gone()
        if self._link.lost is not None:
            raise await self._link.explain()
        if not self.alive:
            raise Misuse("the shell has ended", sandbox=self._link.sandbox)


def _check_size(payload: bytes, largest: str) -> None:
    if len(payload) > MAX_PAYLOAD:
        raise Misuse(f"a request holds {MAX_PAYLOAD} bytes, this one would have {len(payload)}", field=largest)


async def open_shell(link: Link, *, cwd: Inside | None, env: Mapping[str, str] | None, user: User | None) -> AgentShell:
    """`Sandbox.shell`."""
    variables = env_items(env)
    payload = shell(optional_path("cwd", cwd), user_bytes(user), variables)
    check_request(payload, (), variables, "env")
    session = Session(link.loop)
    link.open(session, SHELL, payload)
    await link.opened(session)
    return AgentShell(link, session)
