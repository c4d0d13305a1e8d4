"""`AgentSandbox`: the `Sandbox` contract over a link to the guest agent. Drivers make it and free the machine's side.

Everything here delegates; this module owns the sandbox's end: forwards, link and machine are released once, in that
order, by whoever calls `destroy` first or by the link when the agent breaks its word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Never

from dutyfree.core.contract import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Capabilities,
    Command,
    FileInfo,
    Forward,
    Process,
    Sandbox,
    Shell,
    TerminalSize,
)
from dutyfree.core.egress import Egress
from dutyfree.core.home import check_loop
from dutyfree.core.keyword import unknown_for
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import finish
from dutyfree.core.spec import Content, Inside, Spec, User
from dutyfree.core.timeline import Timeline
from dutyfree.guest import command as commands
from dutyfree.guest import egress, file, forward, process, transfer
from dutyfree.guest import shell as shells
from dutyfree.guest.argument import check_request, env_items, optional_path, user_bytes
from dutyfree.guest.link import Cause, Link

Release = Callable[[], Awaitable[None]]
"""Ends everything the driver holds for the sandbox and returns when it is gone. Called once."""


class AgentActions(Sandbox):
    """Every action over the link to an agent. How the sandbox begins and ends is left to who inherits it."""

    link: Link
    _user: User | None = None
    """Whose rights file methods have, unless they are told."""
    _end: asyncio.Task[None] | None
    _forwards: set[forward.AgentForward]

    @property
    def alive(self) -> bool:
        """The link is up, and nobody has begun to end it."""
        return self._end is None and self.link.lost is None

    def run(
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
        background: bool = False,
        **unknown: Never,
    ) -> Coroutine[Any, Any, Outcome]:
        """Run a command to its end."""
        if unknown:
            raise unknown_for(Sandbox.run, unknown)
        return commands.run(
            self.link,
            command,
            timeout_s=timeout_s,
            cwd=cwd,
            env=env,
            stdin=stdin,
            user=user,
            merge_stderr=merge_stderr,
            output_limit_bytes=output_limit_bytes,
            kill_on_output_limit=kill_on_output_limit,
            background=background,
        )

    async def start(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: Inside | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Content | None = b"",
        user: User | None = None,
        merge_stderr: bool = False,
        terminal: TerminalSize | None = None,
        background: bool = False,
        **unknown: Never,
    ) -> Process:
        """Give a command its `Process`."""
        if unknown:
            raise unknown_for(Sandbox.start, unknown)
        return await process.start(
            self.link,
            command,
            timeout_s=timeout_s,
            cwd=cwd,
            env=env,
            stdin=stdin,
            user=user,
            merge_stderr=merge_stderr,
            terminal=terminal,
            background=background,
        )

    async def shell(
        self, *, cwd: Inside | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Shell:
        """Open a persistent shell."""
        return await shells.open_shell(self.link, cwd=cwd, env=env, user=user)

    async def read(
        self, path: Inside, *, offset: int = 0, length: int | None = None, user: User | None = None
    ) -> bytes:
        """A file's bytes, or a part of them."""
        return await file.read(self.link, path, offset, length, user=self._user if user is None else user)

    async def write(
        self, path: Inside, data: Content, *, mode: int = 0o644, append: bool = False, user: User | None = None
    ) -> None:
        """Create or replace a file."""
        await file.write(self.link, path, data, mode, append, user=self._user if user is None else user)

    async def stat(self, path: Inside, *, follow: bool = True, user: User | None = None) -> FileInfo:
        """Describe the file at a path."""
        return await file.stat(self.link, path, follow, self._user if user is None else user)

    async def list(self, path: Inside, *, limit: int = 100_000, user: User | None = None) -> list[FileInfo]:
        """A directory's entries."""
        return await file.list_directory(self.link, path, limit, self._user if user is None else user)

    async def mkdir(self, path: Inside, *, mode: int = 0o755, user: User | None = None) -> None:
        """Make a directory."""
        await file.mkdir(self.link, path, mode, self._user if user is None else user)

    async def remove(self, path: Inside, *, recursive: bool = False, user: User | None = None) -> None:
        """Remove a file or a directory."""
        await file.remove(self.link, path, recursive, self._user if user is None else user)

    async def rename(self, source: Inside, target: Inside, *, user: User | None = None) -> None:
        """Rename as the kernel does, within one filesystem."""
        await file.rename(self.link, source, target, self._user if user is None else user)

    async def upload(self, local: Path | str, remote: Inside) -> None:
        """Copy a local file or tree into the sandbox."""
        await transfer.upload(self.link, local, remote)

    async def download(self, remote: Inside, local: Path | str, *, limit_bytes: int = 1 << 30) -> None:
        """Copy a file or tree out."""
        await transfer.download(self.link, remote, local, limit_bytes)

    async def expose(self, port: int) -> Forward:
        """Relay a port of the host's loopback to `port` inside."""
        return self._note(await forward.expose(self.link, port))

    async def provide(self, port: int, address: str | tuple[str, int]) -> Forward:
        """Listen on `port` inside; relay to `address`."""
        return self._note(await forward.provide(self.link, port, address))

    async def allow_egress(self, policy: Egress) -> None:
        """Listen inside for who wants out, and let through what the policy allows. For drivers; once per link."""
        self._note(await egress.open_egress(self.link, policy))

    def _note(self, made: forward.AgentForward) -> forward.AgentForward:
        self._forwards.add(made)
        return made


class AgentSandbox(AgentActions):
    """A sandbox with our agent inside."""

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the contract's own name
        spec: Spec,
        capabilities: Capabilities,
        timeline: Timeline,
        link: Link,
        release: Release,
        reason: Cause | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Inside | None = None,
        user: User | None = None,
    ) -> None:
        """Takes over a link that has greeted, and tells the agent the defaults of every action.

        These are the image's own (`env`, `cwd`, `user`) where the spec says nothing. `reason` is asked why the sandbox
        died (None: unknown) when its stream has ended by itself.
        """
        self.id = id
        self.spec = spec
        self.network = spec.network or "none"
        self.capabilities = capabilities
        self.timeline = timeline
        self.link = link
        link.cause = reason or link.cause
        self._release = release
        self._forwards = set()
        self._end = None
        self._user = spec.user or user
        self._defaults = ({**(env or {}), **spec.env}, spec.cwd or cwd, self._user)
        self._adopt(link)

    async def destroy(self) -> None:
        """End everything the sandbox owns and wait until it is gone."""
        check_loop(self._home)
        self._begin_end()
        if self._end is not None:
            await finish(asyncio.shield(self._end))

    def _adopt(self, link: Link) -> None:
        """Tell an agent what holds for every action, and take it for this sandbox's own."""
        env, cwd, user = self._defaults
        items = env_items(env)
        idle_ns = int((self.spec.idle_s or 0) * 1e9)
        if items or cwd or user or idle_ns:
            check_request(b"".join(items), (), items, "env")
            link.configure(cwd=optional_path("cwd", cwd), user=user_bytes(user), env=items, idle_ns=idle_ns)
        link.broken = self._begin_end
        self.link = link

    async def _leave(self, why: str) -> None:
        """End what was begun with the present agent; another one may be adopted after it."""
        forwards, self._forwards = self._forwards, set()
        self.link.cause = None
        self.link.close(why)
        for made in forwards:
            await made.close()

    def _begin_end(self) -> None:
        if self._end is None:
            self._end = asyncio.ensure_future(self._finish_end())

    async def _finish_end(self) -> None:
        with self.timeline.span("destroy"):
            for made in self._forwards:
                await made.close()
            self.link.close()
            await self._release()
            del self._release  # often a method of our own, which would keep us until a collector comes
