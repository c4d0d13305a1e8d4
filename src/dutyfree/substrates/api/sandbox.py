"""`ApiSandbox`: the contract over an exec call per action.

Owns its clocks and its end; the driver frees the machine's side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Never, TypeVar

from dutyfree.core.contract import DEFAULT_OUTPUT_LIMIT_BYTES, Command, FileInfo, Sandbox
from dutyfree.core.errors import SandboxLost
from dutyfree.core.home import check_loop
from dutyfree.core.keyword import unknown_for
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import finish
from dutyfree.core.spec import Content, Inside, User, check_timeout
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Execute, Sink
from dutyfree.driver.exec_command import DispatchFloor, Runner
from dutyfree.driver.sandbox import Expiry
from dutyfree.guest.argument import output_limit
from dutyfree.substrates.api import file, transfer
from dutyfree.substrates.boot import Birth

API_NOTES = {
    "dispatch": "the command's own time is what lies above the cheapest exec call seen: an exec does not tell its start",
    "stream": "not offered over an exec call per command; use dispatch=agent",
    "terminal": "as stream",
    "shell": "as stream",
    "forward": "as stream",
    "process_tree": "processes are found by a mark in their environment: who gives that away survives a deadline",
}

T = TypeVar("T")


class ApiSandbox(Sandbox):
    """A sandbox with nothing of ours inside."""

    def __init__(self, birth: Birth, execute: Execute, floor: DispatchFloor) -> None:
        self.id = birth.id
        self.spec = birth.spec
        self.network = birth.spec.network or "none"
        self.capabilities = birth.capabilities
        self.timeline = birth.timeline
        self._birth = birth
        self._runner = Runner(
            execute=self._guarded(execute),
            sandbox=birth.id,
            env={**birth.defaults.env, **birth.spec.env},
            cwd=birth.spec.cwd or birth.defaults.cwd,
            user=birth.spec.user or birth.defaults.user,
            floor=floor,
            give_up=self.lose,
            limited_memory=birth.spec.limits.memory_bytes is not None,
        )
        self._busy = 0
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()
        self._why: str | None = None
        self._end: asyncio.Task[None] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self._expiry = Expiry(
            birth.spec.lifetime_s, birth.spec.idle_s, self.lose, lambda: None if self._busy else self._used
        )

    @property
    def alive(self) -> bool:
        """Nobody has begun to end it."""
        return self._end is None

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
        deadline_s = check_timeout("timeout_s", timeout_s)
        limit = output_limit(output_limit_bytes)
        wanted = self._runner.execution(command, cwd=cwd, env=env, stdin=stdin, user=user, merge_stderr=merge_stderr)
        with self._use():
            return await self._runner.run(wanted, limit, timeout_s=deadline_s, fatal_output=kill_on_output_limit)

    async def read(
        self, path: Inside, *, offset: int = 0, length: int | None = None, user: User | None = None
    ) -> bytes:
        """A file's bytes, by `cat`."""
        return await self._used_for(file.read(self._runner.as_user(user), path, offset, length))

    async def write(
        self, path: Inside, data: Content, *, mode: int = 0o644, append: bool = False, user: User | None = None
    ) -> None:
        """Create or replace a file, by `cat`."""
        await self._used_for(file.write(self._runner.as_user(user), path, data, mode, append))

    async def stat(self, path: Inside, *, follow: bool = True, user: User | None = None) -> FileInfo:
        """Describe the file at a path; times to the second."""
        return await self._used_for(file.stat(self._runner.as_user(user), path, follow))

    async def list(self, path: Inside, *, limit: int = 100_000, user: User | None = None) -> list[FileInfo]:
        """A directory's entries, by `find`."""
        return await self._used_for(file.entries(self._runner.as_user(user), path, limit))

    async def mkdir(self, path: Inside, *, mode: int = 0o755, user: User | None = None) -> None:
        """Make a directory."""
        await self._used_for(file.mkdir(self._runner.as_user(user), path, mode))

    async def remove(self, path: Inside, *, recursive: bool = False, user: User | None = None) -> None:
        """Remove a file or a directory."""
        await self._used_for(file.remove(self._runner.as_user(user), path, recursive))

    async def rename(self, source: Inside, target: Inside, *, user: User | None = None) -> None:
        """By `mv`."""
        await self._used_for(file.rename(self._runner.as_user(user), source, target))

    async def upload(self, local: Path | str, remote: Inside) -> None:
        """By `tar`."""
        await self._used_for(transfer.upload(self._runner, local, remote))

    async def download(self, remote: Inside, local: Path | str, *, limit_bytes: int = 1 << 30) -> None:
        """By `tar`."""
        await self._used_for(transfer.download(self._runner, remote, local, limit_bytes))

    async def destroy(self) -> None:
        """End everything the sandbox owns and wait until it is gone."""
        check_loop(self._home)
        self.lose("it was destroyed")
        if self._end is not None:
            await finish(asyncio.shield(self._end))

    def lose(self, why: str) -> None:
        """Begin to destroy it; calls from now on raise `SandboxLost` saying why."""
        if self._end is None:
            self._why = why
            self._lost.set()
            self._end = self._loop.create_task(self._destroy())

    async def _destroy(self) -> None:
        self._expiry.cancel()
        with self.timeline.span("destroy"):
            await self._birth.release()

    def _gone(self) -> SandboxLost:
        return SandboxLost(f"the sandbox is gone: {self._why}", driver=self._birth.driver, sandbox=self.id)

    @contextmanager
    def _use(self) -> Iterator[None]:
        check_loop(self._home)
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._used = self._loop.time()

    async def _used_for(self, work: Awaitable[T]) -> T:
        with self._use():
            return await work

    def _guarded(self, execute: Execute) -> Execute:
        """The same exec call, cut off when the sandbox ends."""

        async def guarded(wanted: ExecCall, sink: Sink) -> ExecEnd:
            if self._end is not None:
                raise self._gone()
            call = asyncio.ensure_future(execute(wanted, sink))
            lost = asyncio.ensure_future(self._lost.wait())
            try:
                await asyncio.wait({call, lost}, return_when="FIRST_COMPLETED")
                if lost.done():
                    raise self._gone()
                return call.result()
            except SandboxLost as error:
                self.lose(error.message)
                raise self._gone() from error
            finally:
                lost.cancel()
                if not call.done():
                    call.cancel()
                    await asyncio.wait({call})
                if not call.cancelled():
                    call.exception()

        return guarded
