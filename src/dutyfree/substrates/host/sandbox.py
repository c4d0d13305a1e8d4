"""`HostSandbox`: a temporary directory and the processes started in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Never

from dutyfree.core.contract import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Capabilities,
    Command,
    FileInfo,
    Process,
    Sandbox,
    Shell,
    TerminalSize,
)
from dutyfree.core.errors import SandboxLost, Unsupported
from dutyfree.core.home import check_loop
from dutyfree.core.keyword import unknown_for
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import finish
from dutyfree.core.spec import Content, Inside, Spec, User, check_env, check_path, check_timeout
from dutyfree.core.timeline import Timeline, now_ns
from dutyfree.guest.argument import command_items, input_bytes, output_limit, whole
from dutyfree.guest.thread import in_thread
from dutyfree.guest.transfer import local_path
from dutyfree.guest.wire import SCRIPT
from dutyfree.substrates.host import file
from dutyfree.substrates.host.child import (
    Child,
    Collector,
    NotStarted,
    gone,
    memory_file,
    outcome_not_started,
    settle,
    spawn,
)
from dutyfree.substrates.host.process import HostProcess
from dutyfree.substrates.host.shell import HostShell, open_shell
from dutyfree.tree.beneath import delete_tree


class HostSandbox(Sandbox):
    """Made by `HostSubstrate`."""

    def __init__(self, *, id: str, spec: Spec, capabilities: Capabilities, directory: Path, interpreter: bytes, no_input: int, released: Callable[[HostSandbox], None]) -> None:  # noqa: A002  # fmt: skip
        self.id = id
        self.spec = spec
        self.network = spec.network or "host"
        self.timeline = Timeline()
        self.capabilities = capabilities
        self.directory = directory
        self._interpreter = interpreter
        self._no_input = no_input
        self._released = released
        self._env = {
            "HOME": str(directory / "home"),
            "LC_CTYPE": "C.UTF-8",
            "PATH": os.environ.get("PATH", os.defpath),
            "SHELL": os.fsdecode(interpreter),
            "TMPDIR": str(directory / "tmp"),
            **spec.env,
        }
        self._cwd = spec.cwd or str(directory / "home")
        self._children: set[Child] = set()
        self._processes: dict[Child, HostProcess] = {}
        self._shells: set[HostShell] = set()
        self._why_gone: str | None = None
        self._destroyed: asyncio.Task[None] | None = None
        self.busy = 0
        self.used_ns = now_ns()

    @property
    def alive(self) -> bool:
        """Nobody has begun to end it."""
        return self._why_gone is None

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
        background: bool = False,
        **unknown: Never,
    ) -> Outcome:
        """Run a command to its end."""
        if unknown:
            raise unknown_for(Sandbox.run, unknown)
        called_ns = now_ns()
        limit = output_limit(output_limit_bytes)
        try:
            child = self._spawn(command, timeout_s, cwd, env, input_bytes(stdin), user, merge_stderr, background)
        except NotStarted as failure:
            return outcome_not_started(failure, called_ns, merge_stderr=merge_stderr)
        over = partial(child.kill, "output-limit") if kill_on_output_limit else None
        output = Collector(child, limit, over)
        try:
            await settle(child)
        finally:
            output.finish()
            self._ended(child)
        if self._why_gone:
            raise self._lost()
        stdout, stderr = output.streams[0], None if merge_stderr else output.streams[1]
        return child.outcome(called_ns, stdout, stderr)

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
        """Start a command and hand back its `Process`."""
        if unknown:
            raise unknown_for(Sandbox.start, unknown)
        called_ns = now_ns()
        if terminal is not None:
            raise self._unsupported("terminal")
        given = None if stdin is None else input_bytes(stdin)
        ours = theirs = None
        if given is None:
            theirs, ours = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ours, False)
        try:
            child = self._spawn(command, timeout_s, cwd, env, given, user, merge_stderr, background, theirs)
        except NotStarted as failure:
            # What a shell would do, so that the caller sees one kind of ending: say why, and exit with the code.
            script = ["sh", "-c", 'printf %s "$1" >&2; exit "$2"', "sh", str(failure), str(failure.code)]
            child = self._spawn(script, timeout_s, None, None, given, None, merge_stderr, False, theirs)
        except BaseException:
            if ours is not None:
                os.close(ours)
            raise
        finally:
            if theirs is not None:
                os.close(theirs)
        process = HostProcess(child, ours, called_ns, partial(self._ended, child))
        self._processes[child] = process
        return process

    async def shell(
        self, *, cwd: Inside | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Shell:
        """Open a persistent bash."""
        where, variables = self._place(cwd, env, user)
        shell = await open_shell(cwd=where, env=variables, started=self._started, ended=self._ended)
        self._shells.add(shell)
        return shell

    async def read(
        self, path: Inside, *, offset: int = 0, length: int | None = None, user: User | None = None
    ) -> bytes:
        """A file's bytes; in place if few, else in a thread."""
        path = self._touch(path)
        self._own(user)
        whole("offset", offset, 0, 1 << 62)
        if length is not None:
            whole("length", length, 0, 1 << 62)
        few = length is not None and length <= file.SMALL_BYTES
        if few or os.stat(path).st_size <= file.SMALL_BYTES:
            return file.read(path, offset, length)
        return await in_thread(file.read, path, offset, length)

    async def write(
        self, path: Inside, data: Content, *, mode: int = 0o644, append: bool = False, user: User | None = None
    ) -> None:
        """Create or replace a file; in place if small, else in a thread."""
        path = self._touch(path)
        self._own(user)
        whole("mode", mode, 0, 0o7777)
        content = input_bytes(data, "data")
        if len(content) <= file.SMALL_BYTES:
            file.write(path, content, mode, append)
        else:
            await in_thread(file.write, path, content, mode, append)

    async def stat(self, path: Inside, *, follow: bool = True, user: User | None = None) -> FileInfo:
        """Describe the file at a path."""
        path = self._touch(path)
        self._own(user)
        return file.info(os.path.basename(path.rstrip("/")) or "/", os.stat(path, follow_symlinks=follow))

    async def list(self, path: Inside, *, limit: int = 100_000, user: User | None = None) -> list[FileInfo]:
        """A directory's entries, read in a thread: there may be many."""
        path = self._touch(path)
        self._own(user)
        return await in_thread(file.entries, path, whole("limit", limit, 1, 1 << 40))

    async def mkdir(self, path: Inside, *, mode: int = 0o755, user: User | None = None) -> None:
        """Make a directory and those above it."""
        path = self._touch(path)
        self._own(user)
        os.makedirs(path, mode=whole("mode", mode, 0, 0o7777), exist_ok=True)

    async def remove(self, path: Inside, *, recursive: bool = False, user: User | None = None) -> None:
        """Remove a file, a link or a directory."""
        path = self._touch(path)
        self._own(user)
        await in_thread(file.remove, path, recursive)

    async def rename(self, source: Inside, target: Inside, *, user: User | None = None) -> None:
        """As rename(2)."""
        source = self._touch(source, "source")
        self._own(user)
        target = check_path("target", target)
        os.rename(source, target)

    async def upload(self, local: Path | str, remote: Inside) -> None:
        """Copy a file or tree."""
        remote = self._touch(remote, "remote")
        await in_thread(file.copy_in, local_path("local", local), remote)

    async def download(self, remote: Inside, local: Path | str, *, limit_bytes: int = 1 << 30) -> None:
        """Copy a file or tree to where nothing is yet."""
        remote = self._touch(remote, "remote")
        whole("limit_bytes", limit_bytes, 0, 1 << 50)
        await in_thread(file.copy_out, remote, local_path("local", local), limit_bytes)

    async def destroy(self) -> None:
        """Kill what runs, remove the directory."""
        check_loop(self._home)
        if self._destroyed is None:
            self.lose("it was destroyed")
        assert self._destroyed is not None  # noqa: S101
        await finish(asyncio.shield(self._destroyed))

    def lose(self, why: str) -> None:
        """Begin to destroy it; calls from now on raise `SandboxLost` saying why."""
        if self._destroyed is None:
            self._why_gone = why
            self._destroyed = asyncio.get_running_loop().create_task(self._destroy())

    async def _destroy(self) -> None:
        with self.timeline.span("destroy"):
            for shell in list(self._shells):
                await shell.close()
            for child in list(self._children):
                if child.background and child.end_ns:
                    child.reap_background()
                else:
                    child.kill("cancelled")
                    await gone(child)
                if child in self._processes:
                    await self._processes[child].release()
                child.close()
            self._children.clear()
            await in_thread(delete_tree, self.directory)
        self._released(self)

    def _spawn(
        self,
        command: Command,
        timeout_s: float | None,
        cwd: Inside | None,
        env: Mapping[str, str] | None,
        stdin: bytes | bytearray | memoryview | None,
        user: User | None,
        merge_stderr: bool,
        background: bool,
        input_fd: int | None = None,
    ) -> Child:
        options, argv = command_items(command)
        check_timeout("timeout_s", timeout_s)
        where, variables = self._place(cwd, env, user)
        if options & SCRIPT:
            argv = [self._interpreter, b"-c", *argv]
        source = memory_file(stdin) if stdin else -1
        try:
            child = spawn(
                argv,
                cwd=where,
                env=variables,
                stdin=input_fd if input_fd is not None else (source if source >= 0 else self._no_input),
                merge_stderr=merge_stderr,
            )
        finally:
            if source >= 0:
                os.close(source)
        child.background = background
        child.expire(timeout_s)
        self._started(child)
        return child

    def _own(self, user: User | None) -> None:
        if user is not None:
            raise Unsupported("user: everything is done as the user who runs Python", driver="host", sandbox=self.id)

    def _place(
        self, cwd: Inside | None, env: Mapping[str, str] | None, user: User | None
    ) -> tuple[str, dict[str, str]]:
        if self._why_gone:
            raise self._lost()
        check_loop(self._home)
        self._own(user)
        where = self._cwd if cwd is None else check_path("cwd", cwd)
        return where, self._env if env is None else {**self._env, **check_env("env", env)}

    def _touch(self, path: Inside, field: str = "path") -> str:
        if self._why_gone:
            raise self._lost()
        check_loop(self._home)
        self.used_ns = now_ns()
        return check_path(field, path)

    def _started(self, child: Child) -> None:
        self.busy += 1
        self._children.add(child)

    def _ended(self, child: Child) -> None:
        self.busy -= 1
        self.used_ns = now_ns()
        self._processes.pop(child, None)
        if not child.background:
            self._children.discard(child)

    def _lost(self) -> SandboxLost:
        return SandboxLost(f"the sandbox is gone: {self._why_gone}", driver="host", sandbox=self.id)
