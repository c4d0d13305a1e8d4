"""`AgentSandbox`: every action over one stream to our agent. Also the agent's program, for bodies that have to bring it.

The program is one static file without any dependency, so it runs in every Linux root.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Never

from dutyfree.core.checkout import make
from dutyfree.core.contract import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Command,
    FileInfo,
    Forward,
    Process,
    Sandbox,
    Shell,
    TerminalSize,
)
from dutyfree.core.egress import Egress
from dutyfree.core.errors import DriverError, SandboxLost, Unavailable
from dutyfree.core.keyword import unknown_for
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Content, Inside, User
from dutyfree.driver.backend import Body
from dutyfree.driver.sandbox import DriverSandbox
from dutyfree.guest import command as commands
from dutyfree.guest import egress, file, forward, process, transfer
from dutyfree.guest import shell as shells
from dutyfree.guest.argument import check_request, env_items, optional_path, user_bytes
from dutyfree.guest.link import Link

AGENT_INSIDE = "/dev/.dutyfree/agent"
"""The path of the program in a container, on a read-only bind mount: /dev is never the image's own."""


def agent_program(driver: str) -> Path:
    """Find the agent's program; `Unavailable` with the command that builds it."""
    path = Path(__file__).parents[1] / "_native" / "dutyfree-agent"
    if not path.exists():
        raise Unavailable(
            "the native programs are not built",
            enable=make("setup", "pip install --force-reinstall dutyfree"),
            driver=driver,
        )
    return path


class AgentSandbox(DriverSandbox):
    """A sandbox with our agent inside. `link` is replaced by a reset."""

    link: Link
    _joined = False
    _user: str | None = None
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
        """Listen inside for who wants out, and let through what the policy allows. For bodies; once per link."""
        self._note(await egress.open_egress(self.link, policy))

    async def _join(self, body: Body) -> None:
        """Take over the stream to the agent, and wait for its greeting. What every action starts with is sent meanwhile."""
        self.link = link = Link.attach(await body.agent(), sandbox=self.id)
        self._joined, self._forwards = True, set()
        if self.spec.idle_s is not None:
            body.idle_s = self.spec.idle_s
        link.cause = body.reason
        if not body.greets_first:
            self._configure(link, body)
        await _greet(link, body)
        if body.greets_first:
            self._configure(link, body)
        link.broken = self._begin_end

    def _configure(self, link: Link, body: Body) -> None:
        wanted = self._defaults(body)
        self._user = wanted.user
        items = env_items(wanted.env)
        idle_ns = int((self.spec.idle_s or 0) * 1e9)
        if items or wanted.cwd or wanted.user or idle_ns:
            check_request(b"".join(items), (), items, "env")
            cwd, user = optional_path("cwd", wanted.cwd), user_bytes(wanted.user)
            link.configure(cwd=cwd, user=user, env=items, idle_ns=idle_ns)

    async def _leave(self, why: str) -> None:
        """Close the forwards, then the stream; the agent ends with it, and every process of the sandbox."""
        if not self._joined:
            return
        forwards, self._forwards = self._forwards, set()
        for made in forwards:
            await made.close()
        self.link.close(why)

    async def _check_alive(self) -> None:
        if self._end is not None or self.link.lost is not None:
            raise await self.link.explain()

    def _note(self, made: forward.AgentForward) -> forward.AgentForward:
        self._forwards.add(made)
        return made


async def _greet(link: Link, body: Body) -> None:
    try:
        await link.hello(body.hello_timeout_s)
    except (SandboxLost, Unavailable) as error:
        why = await body.cause()
        raise DriverError(f"the agent did not start: {why or error.message}", step="ready") from error
