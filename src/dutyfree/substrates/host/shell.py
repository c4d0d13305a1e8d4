"""`HostShell`: a persistent bash.

An interactive bash reads scripts from a pipe and reports each status through `PROMPT_COMMAND` on a descriptor of its
own: being interactive it survives SIGINT as at a keyboard, and nothing is mixed into the output. When the status has
come, everything the script wrote is in the pipes already, so they are emptied and the outcome is whole.

A SIGINT that meets bash at its prompt makes it prompt, and report, again. So every report carries the number of lines
that bash has begun to run, which `PS0` counts, and a number that was heard before is no answer.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Callable, Mapping

from dutyfree.core.contract import DEFAULT_OUTPUT_LIMIT_BYTES, Process
from dutyfree.core.errors import Misuse, SandboxLost, Unavailable, Unsupported
from dutyfree.core.home import own, seal
from dutyfree.core.outcome import Ending, Outcome
from dutyfree.core.pending import finish
from dutyfree.core.spec import Content, check_timeout
from dutyfree.core.timeline import now_ns
from dutyfree.driver.exec_call import CappedOutput
from dutyfree.guest.argument import encoded, input_bytes, output_limit
from dutyfree.guest.wire import Bytes
from dutyfree.substrates.host.child import CHUNK_BYTES, Child, NotStarted, gone, memory_file, settle_once, spawn
from dutyfree.substrates.host.tree import kill_tree

_ARGV = [b"bash", b"--norc", b"--noprofile", b"--noediting", b"-i"]
_PROMPTS = {"PS0": "${_dutyfree_line:$((_dutyfree_line+=1,0)):0}", "PS1": "", "PS2": "", "HISTFILE": ""}
_BEGIN_EVERY_S = 0.001
_BEGINS = 20
"""An interrupt looks so often whether bash has begun its script, at that interval."""

STOP_EVERY_S = 0.05
STOPS = 20
"""A script that outlives its deadline is stopped this often, at that interval; then its shell goes with it."""


class HostShell:
    """A `core.contract.Shell`; open it with `open_shell`."""

    def __init__(self, child: Child, control: int, status: int, kept_fd: int, ended: Callable[[], None]) -> None:
        self._child = child
        self._control = control
        self._status = status
        self._kept_fd = kept_fd
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[int | None] = self._loop.create_future()
        self._streams: list[CappedOutput] = [CappedOutput(0), CappedOutput(0)]
        self._turn = asyncio.Lock()
        self._closed = self._expired = False
        self._line = -1
        """The last line whose status was heard."""
        self._running: object | None = None
        self._interrupted = False
        self._stopping: asyncio.TimerHandle | None = None
        for index, fd in enumerate(child.pipes):
            self._loop.add_reader(fd, self._readable, index)
        self._loop.add_reader(status, self._reported)
        own(self)

    def disown(self) -> None:
        """In a forked child: close the child's ends of the pipes."""
        if not self._closed:
            for fd in (*self._child.pipes, self._status, self._control):
                os.close(fd)
        seal(self)

    async def ready(self) -> None:
        """The first prompt, and switching off what only people at a keyboard want."""
        await self._code()
        await self._eval("set +o history +o histexpand", os.devnull)
        await self._code()
        self._drain()

    async def run(
        self,
        script: str,
        *,
        timeout_s: float | None = None,
        stdin: Content = b"",
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Outcome:
        """Run a script in the shell; scripts of several callers take turns."""
        check_timeout("timeout_s", timeout_s)
        given = input_bytes(stdin)
        if not isinstance(script, str) or "\0" in script:
            raise Misuse("must be a string without NUL", field="script")
        encoded("script", script)
        limit = output_limit(output_limit_bytes)
        async with self._turn:
            if not self.alive:
                raise Misuse("the shell has ended: open another", driver="host")
            return await self._run(script, timeout_s, given, limit)

    async def start(self, script: str, *, timeout_s: float | None = None, stdin: Content = b"") -> Process:
        """Watching a script is not offered here."""
        del script, timeout_s, stdin
        raise Unsupported("a shell's output cannot be watched here: use run, or Sandbox.start", driver="host")

    async def interrupt(self) -> None:
        """SIGINT to the shell and what it runs; nothing if it runs nothing."""
        turn = self._running
        if turn is None:
            return
        for _ in range(_BEGINS):
            if self._begun() or self._running is not turn:
                break
            await asyncio.sleep(_BEGIN_EVERY_S)  # met while it reads a line, bash would run the rest of that line
        if self._running is turn and self.alive:
            self._interrupt()

    @property
    def alive(self) -> bool:
        """It has neither exited nor been closed."""
        return not self._closed and self._child.end_ns == 0

    async def close(self) -> None:
        """Kill it and all it left running."""
        if self._closed:
            return
        self._closed = True
        self._child.kill("cancelled")
        await finish(gone(self._child))
        for fd in (*self._child.pipes, self._status):
            self._loop.remove_reader(fd)
        for fd in (self._status, self._control):
            os.close(fd)
        self._child.close()
        self._ended()

    async def __aenter__(self) -> HostShell:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _run(self, script: str, timeout_s: float | None, stdin: Bytes, limit: int) -> Outcome:
        called_ns = now_ns()
        self._drain()
        self._streams = [CappedOutput(limit), CappedOutput(limit)]
        self._expired = self._interrupted = False
        self._running = object()
        late = self._loop.call_later(timeout_s, self._expire) if timeout_s is not None else None
        source = memory_file(stdin) if stdin else None
        try:
            # Opened by path, the file has a position of its own: bash's, at the start.
            await self._eval(script, os.devnull if source is None else f"/proc/{os.getpid()}/fd/{source}")
            code = await self._code()
        except asyncio.CancelledError:
            self._stop()
            await finish(self._settled())
            raise
        finally:
            self._running = None
            for timer in (late, self._stopping):
                if timer is not None:
                    timer.cancel()
            if source is not None:
                os.close(source)
        return await self._outcome(code, called_ns)

    async def _outcome(self, code: int | None, called_ns: int) -> Outcome:
        if code is None:
            await gone(self._child)
            if self._closed:
                raise SandboxLost("the shell was closed while it ran a script", driver="host")
        self._drain()
        elapsed_ns = now_ns() - called_ns
        ended = os.waitstatus_to_exitcode(self._child.status) if code is None else code
        ending: Ending = "timeout" if self._expired else ("exit" if ended >= 0 else "signal")
        out, err = self._streams
        omitted = out.omitted_bytes + err.omitted_bytes
        return Outcome(
            ending=ending,
            exit_code=ended if ending == "exit" else None,
            signal=signal.SIGKILL if ending == "timeout" else (-ended if ended < 0 else None),
            stdout=out.kept(),
            stderr=err.kept(),
            truncated=omitted > 0,
            omitted_bytes=omitted,
            stderr_omitted_bytes=err.omitted_bytes,
            stdout_gap=out.gap,
            stderr_gap=err.gap,
            run_ns=elapsed_ns,
            total_ns=elapsed_ns,
        )

    def _expire(self) -> None:
        self._expired = True
        self._stop()

    def _stop(self, again: int = STOPS) -> None:
        """Ctrl-C, and SIGKILL for what the shell runs; again while the script goes on, and in the end the shell too."""
        if self._answer.done() or not self.alive:
            return
        if not again:
            self._child.kill("timeout")
            return
        self._interrupt()
        kill_tree(self._child.pid, spare_root=True)
        self._stopping = self._loop.call_later(STOP_EVERY_S, self._stop, again - 1)

    def _interrupt(self) -> None:
        self._interrupted = True
        os.killpg(self._child.pid, signal.SIGINT)

    def _begun(self) -> bool:
        """Bash runs its line: it keeps its own input above 9 meanwhile."""
        return os.path.exists(f"/proc/{self._child.pid}/fd/{self._kept_fd}")

    async def _settled(self) -> None:
        await self._code()

    async def _eval(self, script: str, stdin: str) -> None:
        line = f"eval {shlex.quote(script)} <{stdin}\n".encode(errors="surrogateescape")
        view = memoryview(line)
        while view and self._child.end_ns == 0:
            try:
                view = view[os.write(self._control, view) :]
            except BlockingIOError:
                await self._writable()
            except BrokenPipeError:
                return

    async def _writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._control, settle_once, ready)
        try:
            await asyncio.wait([ready, self._child.exited], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop.remove_writer(self._control)

    async def _code(self) -> int | None:
        """The status of what was just run; None if the shell has ended instead."""
        if self._answer.done():
            return self._take()
        await asyncio.wait((self._answer, self._child.exited), return_when=asyncio.FIRST_COMPLETED)
        return self._take() if self._answer.done() else None

    def _take(self) -> int | None:
        code = self._answer.result()
        if code is not None:
            self._answer = self._loop.create_future()
        return code

    def _reported(self) -> None:
        text = os.read(self._status, 4096)
        if not text:
            self._loop.remove_reader(self._status)
            if not self._answer.done():
                self._answer.set_result(None)
        for report in text.splitlines():
            line, code = map(int, report.split())
            # Interrupted before it began a line, bash answers with the number of the one before.
            if not self._answer.done() and (line > self._line or self._interrupted):
                self._line = line
                self._answer.set_result(code)

    def _drain(self) -> None:
        for index in range(len(self._child.pipes)):
            while self._readable(index):
                pass

    def _readable(self, index: int) -> bool:
        try:
            data = os.read(self._child.pipes[index], CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._child.pipes[index])
        self._streams[index].add(data)
        return bool(data)


async def open_shell(
    *, cwd: str, env: Mapping[str, str], started: Callable[[Child], None], ended: Callable[[Child], None]
) -> HostShell:
    """Start bash and wait for its first prompt."""
    fds: list[int] = []
    try:
        commands, control = os.pipe2(os.O_CLOEXEC)
        fds += [commands, control]
        status, report = os.pipe2(os.O_CLOEXEC)
        fds += [status, report]
        os.set_blocking(control, False)
        os.set_blocking(status, False)
        prompt = {"PROMPT_COMMAND": f'echo "${{_dutyfree_line:=0}} $?" >&{report}', **_PROMPTS}
        child = spawn(_ARGV, cwd=cwd, env={**env, **prompt}, stdin=commands, merge_stderr=False, pass_fd=report)
    except NotStarted as failure:
        for fd in fds:
            os.close(fd)
        raise Unavailable(str(failure).strip(), driver="host", enable="apt-get install -y bash") from None
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    os.close(commands)
    os.close(report)
    started(child)
    shell = HostShell(child, control, status, 11 if report == 10 else 10, lambda: ended(child))
    try:
        await shell.ready()
    except BaseException:
        await shell.close()
        raise
    return shell
