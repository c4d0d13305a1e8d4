"""`Lease`: the sandbox that a pool hands out. What is asked of it goes to the sandbox beneath; its end goes to the pool.

A lease's end is final for its holder: the sandbox may be reset and serve another, which this one can no longer reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dutyfree.core.contract import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Capabilities,
    Command,
    FileInfo,
    Forward,
    Process,
    Sandbox,
    Shell,
    Snapshot,
    TerminalSize,
)
from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec, check_timeout
from dutyfree.core.timeline import Timeline

Origin = Literal["idle", "near", "created", "forked"]
"""idle: it waited in the state asked for · near: it waited in an earlier one · created: for this claim · forked."""


class Lease(Sandbox):
    """Made by `Pool`."""

    def __init__(
        self,
        box: Sandbox,
        *,
        id: str,  # noqa: A002 - the contract's own name
        spec: Spec,
        capabilities: Capabilities,
        origin: Origin,
        owner: str,
        take_back: Callable[[Lease], Awaitable[None]],
        redo: Callable[[Sandbox], Awaitable[None]] | None,
    ) -> None:
        self.id = id
        self.spec = spec
        self.capabilities = capabilities
        self.timeline = Timeline()
        self.origin = origin
        self.owner = owner
        """Who it was leased to, as they said."""
        self.box = box
        """The sandbox beneath; not the holder's any more once the lease has ended."""
        self.uses = 0
        self.key: str | None = None
        """What makes asking for it again harmless."""
        self.handed = False
        self.busy = 0
        """Calls under way."""
        self.entangled = False
        """Something was opened that outlives its call, so a reset could not take it back unseen."""
        self._shells: list[Shell] = []
        self._take_back = take_back
        self._redo = redo
        self._why: str | None = None
        self._end: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def alive(self) -> bool:
        """The lease has not ended, and the sandbox lives."""
        return self._end is None and self.box.alive

    @property
    def reusable(self) -> bool:
        """Nothing of the holder's is still attached to it."""
        return not self.busy and not self.entangled and self._redo is None and not any(s.alive for s in self._shells)

    def expire(self, name: str, after_s: float, why: str, note: Callable[[], None] | None = None) -> None:
        """End it after a while; a clock of the same name starts anew."""
        self.stop_clock(name)

        def over() -> None:
            if note is not None and self._end is None:
                note()
            self.lose(why)

        self._timers[name] = asyncio.get_running_loop().call_later(after_s, over)

    def renew(self, ttl_s: float) -> None:
        """The holder is still there: the lease now ends after `ttl_s` from here on. `Misuse` if it had no such end."""
        self._live()
        timer = self._timers.get("ttl")
        if timer is None:
            raise Misuse("this lease has no time to renew", field="ttl_s", driver="warm", sandbox=self.id)
        seconds = check_timeout("ttl_s", ttl_s)
        assert seconds is not None  # noqa: S101 - not None was given
        self.expire("ttl", seconds, f"its lease of {seconds:g} s was over")

    def stop_clock(self, name: str) -> None:
        """Without a clock it ends when its holder ends it."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    async def run(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str | None = None,
        merge_stderr: bool = False,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        kill_on_output_limit: bool = False,
        background: bool = False,
    ) -> Outcome:
        """Run a command to its end."""
        box = self._live()
        self.busy += 1
        try:
            return await box.run(
                command,
                timeout_s=timeout_s,
                cwd=self.spec.cwd if cwd is None else cwd,
                env=self._merged(env),
                stdin=stdin,
                user=self.spec.user if user is None else user,
                merge_stderr=merge_stderr,
                output_limit_bytes=output_limit_bytes,
                kill_on_output_limit=kill_on_output_limit,
                background=background,
            )
        except SandboxLost as error:
            raise self._explained(error) from None
        finally:
            self.busy -= 1

    async def start(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = b"",
        user: str | None = None,
        merge_stderr: bool = False,
        terminal: TerminalSize | None = None,
        background: bool = False,
    ) -> Process:
        """Give a command its `Process`."""
        with self._calling() as box:
            self.entangled = True
            return await box.start(
                command,
                timeout_s=timeout_s,
                cwd=self.spec.cwd if cwd is None else cwd,
                env=self._merged(env),
                stdin=stdin,
                user=self.spec.user if user is None else user,
                merge_stderr=merge_stderr,
                terminal=terminal,
                background=background,
            )

    async def shell(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str | None = None
    ) -> Shell:
        """Open a persistent shell."""
        with self._calling() as box:
            where, whom = self.spec.cwd if cwd is None else cwd, self.spec.user if user is None else user
            shell = await box.shell(cwd=where, env=self._merged(env), user=whom)
            self._shells.append(shell)
            return shell

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """A file's bytes, or a part of them."""
        with self._calling() as box:
            return await box.read(path, offset=offset, length=length)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False) -> None:
        """Create or replace a file."""
        with self._calling() as box:
            await box.write(path, data, mode=mode, append=append)

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """What is there."""
        with self._calling() as box:
            return await box.stat(path, follow=follow)

    async def list(self, path: str, *, limit: int = 100_000) -> list[FileInfo]:
        """A directory's entries."""
        with self._calling() as box:
            return await box.list(path, limit=limit)

    async def mkdir(self, path: str, *, mode: int = 0o755) -> None:
        """Make a directory."""
        with self._calling() as box:
            await box.mkdir(path, mode=mode)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or a directory."""
        with self._calling() as box:
            await box.remove(path, recursive=recursive)

    async def rename(self, source: str, target: str) -> None:
        """What rename does in the kernel."""
        with self._calling() as box:
            await box.rename(source, target)

    async def upload(self, local: Path | str, remote: str) -> None:
        """Copy a local file or tree into the sandbox."""
        with self._calling() as box:
            await box.upload(local, remote)

    async def download(self, remote: str, local: Path | str, *, limit_bytes: int = 1 << 30) -> None:
        """Copy a file or tree out."""
        with self._calling() as box:
            await box.download(remote, local, limit_bytes=limit_bytes)

    async def expose(self, port: int) -> Forward:
        """Relay a port of the host's loopback to `port` inside."""
        with self._calling() as box:
            self.entangled = True
            return await box.expose(port)

    async def provide(self, port: int, address: str | tuple[str, int]) -> Forward:
        """Listen on `port` inside; relay to `address`."""
        with self._calling() as box:
            self.entangled = True
            return await box.provide(port, address)

    async def snapshot(self, key: str | None = None) -> Snapshot:
        """Save the files as they are now."""
        with self._calling() as box:
            return await box.snapshot(key)

    async def fork(self, n: int) -> Sequence[Pending[Sandbox]]:
        """`n` sandboxes that start from this one's present state; they are the substrate's own and not the pool's."""
        with self._calling() as box:
            return await box.fork(n)

    async def reset(self) -> None:
        """Return to the state at creation: stages that were run in it for this lease are run again."""
        with self._calling() as box, self.timeline.span("reset"):
            await box.reset()
            if self._redo is not None:
                await self._redo(box)

    async def destroy(self) -> None:
        """End the lease, and everything that its holder started, and wait until that is gone."""
        self.lose("it was destroyed")
        if self._end is not None:
            await finish(asyncio.shield(self._end))

    def lose(self, why: str) -> None:
        """Begin to end it; calls from now on raise `SandboxLost` saying why."""
        if self._end is None:
            self._why = why
            for name in list(self._timers):
                self.stop_clock(name)
            self._end = asyncio.ensure_future(self._finish_end())

    async def _finish_end(self) -> None:
        with self.timeline.span("destroy"):
            await self._take_back(self)

    def _live(self) -> Sandbox:
        if self._why is not None:
            raise SandboxLost(f"the sandbox is gone: {self._why}", driver="warm", sandbox=self.id)
        return self.box

    @contextmanager
    def _calling(self) -> Iterator[Sandbox]:
        box = self._live()
        self.busy += 1
        try:
            yield box
        except SandboxLost as error:
            raise self._explained(error) from None
        finally:
            self.busy -= 1

    def _explained(self, error: SandboxLost) -> SandboxLost:
        """The pool knows better why it ended, if it was the pool that ended it."""
        if self._why is None:
            return error
        return SandboxLost(f"the sandbox is gone: {self._why}", driver=error.driver, sandbox=self.id)

    def _merged(self, env: Mapping[str, str] | None) -> Mapping[str, str] | None:
        if not self.spec.env:
            return env
        if env is None:
            return self.spec.env
        return {**self.spec.env, **env} if isinstance(env, Mapping) else env
