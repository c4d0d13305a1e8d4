"""`ExecSandbox`: every action by an exec call of the substrate, a fresh one each time. Nothing of ours runs inside.

Owns the idle clock and the cut: when the sandbox ends, the calls that are under way raise `SandboxLost`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Never

from dutyfree.core.contract import DEFAULT_OUTPUT_LIMIT_BYTES, Command, Sandbox
from dutyfree.core.errors import SandboxLost, Unsupported
from dutyfree.core.home import check_loop
from dutyfree.core.keyword import unknown_for
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Content, Inside, User, check_timeout
from dutyfree.driver.backend import Body
from dutyfree.driver.exec_call import STDERR, ExecCall, ExecEnd, Sink
from dutyfree.driver.exec_command import Runner, ending_of
from dutyfree.driver.exec_file import FilesByRun
from dutyfree.driver.sandbox import DriverSandbox, Expiry
from dutyfree.guest.argument import output_limit

HOLD_COMMAND = ("sh", "-c", "until cat >/dev/null; do [ $? = 1 ] || exit; done")
"""The main process where nothing of ours shall run inside: ends with its input, and reaps what commands leave. It tries
again since gVisor now and then answers a blocking read of a socket with EAGAIN."""

HOLD_PROCESSES = 2
"""Processes that one takes of the caller's `pids`."""


class ExecSandbox(FilesByRun, DriverSandbox):
    """A sandbox with nothing of ours inside."""

    _runner: Runner
    _lost: asyncio.Future[str]
    _busy = 0
    _used_s = 0.0

    async def run(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: Inside | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Content = b"",
        user: User | None = None,
        merge_stderr: bool = False,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        kill_on_output_limit: bool = False,
        background: bool = False,  # noqa: ARG002 - what is left running is left running in any case
        **unknown: Never,
    ) -> Outcome:
        """Run a command by one exec call."""
        if unknown:
            raise unknown_for(Sandbox.run, unknown)
        if user is not None and not self.capabilities.users:
            raise Unsupported("another user is not offered", sandbox=self.id)
        deadline_s = check_timeout("timeout_s", timeout_s)
        limit = output_limit(output_limit_bytes)
        call = self._runner.execution(command, cwd=cwd, env=env, stdin=stdin, user=user, merge_stderr=merge_stderr)
        with self._use():
            return await self._runner.run(call, limit, timeout_s=deadline_s, fatal_output=kill_on_output_limit)

    async def _carry(self, call: ExecCall, sink: Sink) -> int:
        call = call._replace(user=call.user or self._runner.user)
        with self._use():
            end, _ = await self._runner.carry(call, sink)
        if end.refusal is None:
            return end.exit_code
        code, note = ending_of(end.refusal, cwd=call.cwd, user=call.user, sandbox=self.id)
        await sink.add(STDERR, note)
        return code

    async def _join(self, body: Body) -> None:
        await body.ready()
        wanted = self._defaults(body)
        self._lost = lost = asyncio.get_running_loop().create_future()
        self._runner = Runner(
            execute=partial(self._execute, body, lost),
            sandbox=self.id,
            env=wanted.env,
            cwd=wanted.cwd,
            user=wanted.user,
            floor=self._owner.floor,
            give_up=self._begin_end,
            limited_memory=self.spec.limits.memory_bytes is not None,
        )

    async def _leave(self, why: str) -> None:
        lost = getattr(self, "_lost", None)
        if lost is not None and not lost.done():
            lost.set_result(why)

    async def _check_alive(self) -> None:
        await self.stat("/", user="0" if self.capabilities.users else None)

    def _start_clocks(self) -> None:
        self._used_s = asyncio.get_running_loop().time()
        lifetime_s = None if self._owner.backend.keeps_time else self.spec.lifetime_s
        if lifetime_s is not None or self.spec.idle_s is not None:
            self._expiry = Expiry(
                lifetime_s, self.spec.idle_s, self._begin_end, lambda: None if self._busy else self._used_s
            )

    async def _execute(self, body: Body, lost: asyncio.Future[str], call: ExecCall, sink: Sink) -> ExecEnd:
        """Make the body's exec call, cut off when the sandbox ends or is reset."""
        if lost.done():
            raise self._gone(lost.result())
        work = asyncio.ensure_future(body.execute(call, sink))
        try:
            await asyncio.wait([work, lost], return_when="FIRST_COMPLETED")  # type: ignore[type-var]
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])
            failure = None if work.cancelled() else work.exception()
        if lost.done():
            raise self._gone(lost.result())
        if isinstance(failure, SandboxLost):
            self._begin_end(failure.message)
            raise self._gone(failure.message) from failure
        return work.result()

    def _gone(self, why: str) -> SandboxLost:
        return SandboxLost(f"the sandbox is gone: {why}", driver=self._owner.backend.name, sandbox=self.id)

    @contextmanager
    def _use(self) -> Iterator[None]:
        check_loop(self._home)
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._used_s = asyncio.get_running_loop().time()
