"""`Child`: one subprocess, from its start to its being reaped; `collect` brings its output along. The hot path of `host`.

Measured against `subprocess.run(["true"], capture_output=True)` (see docs/decisions): the pidfd alone is watched by the
event loop, since registering two pipes for a command that writes nothing costs as much as everything else here. Pipes
are watched once the command has lived a moment; until then the kernel's 64 KiB of buffer per pipe holds its output.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from dutyfree.core.descriptor import told
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Ending, Outcome
from dutyfree.core.pending import finish
from dutyfree.core.timeline import now_ns
from dutyfree.driver.exec_call import CappedOutput
from dutyfree.substrates.host.tree import kill_tree

PIPES_AFTER_S = 0.002
"""When the pipes of a command come to be watched."""

CHUNK_BYTES = 256 << 10
_LAST_READS = 8
_NOT_RUN = {errno.ENOENT: 127, errno.ENOTDIR: 127, errno.EACCES: 126, errno.ENOEXEC: 126, errno.ELOOP: 127}


class NotStarted(Exception):
    """The program could not be executed: an ordinary ending with `code`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Child:
    """A running subprocess, leader of its own session."""

    __slots__ = ("_deadline", "_loop", "_pidfd", "background", "end_ns", "ending", "exited", "pid", "pipes", "start_ns", "status", "usage")  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, pipes: list[int], start_ns: int) -> None:
        self.pid = pid
        self.pipes = pipes
        """Our non-blocking ends of stdout and stderr; just one if they are merged."""
        self.start_ns = start_ns
        self.end_ns = 0
        self.status = 0
        self.usage: tuple[int, int] = (0, 0)
        self.ending: Ending | None = None
        """Why we killed it, if we did."""
        self.background = False
        self.exited: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._deadline: asyncio.TimerHandle | None = None
        self._pidfd = os.pidfd_open(pid)
        loop.add_reader(self._pidfd, self._on_exit)

    def kill(self, ending: Ending) -> None:
        """Kill the tree; the outcome will say `ending` unless the command has ended already."""
        if self.end_ns == 0 and self.ending is None:
            self.ending = ending
            kill_tree(self.pid)

    def expire(self, timeout_s: float | None) -> None:
        """Set the deadline."""
        if timeout_s is not None:
            self._deadline = self._loop.call_later(timeout_s, self.kill, "timeout")

    def close(self) -> None:
        """Give up the pipes."""
        for fd in self.pipes:
            os.close(fd)
        self.pipes = []

    def reap_background(self) -> None:
        """Kill what a background command left, and free its pid."""
        kill_tree(self.pid)
        os.waitpid(self.pid, 0)

    def outcome(self, called_ns: int, stdout: CappedOutput | None, stderr: CappedOutput | None) -> Outcome:
        """The result of a call that began at `called_ns`."""
        code = os.waitstatus_to_exitcode(self.status)
        ending = self.ending or ("exit" if code >= 0 else "signal")
        omitted = sum(stream.omitted_bytes for stream in (stdout, stderr) if stream)
        return Outcome(
            ending=ending,
            exit_code=code if ending == "exit" else None,
            signal=-code if code < 0 else None,
            stdout=stdout.kept() if stdout else b"",
            stderr=stderr.kept() if stderr else b"",
            truncated=omitted > 0,
            omitted_bytes=omitted,
            stderr_omitted_bytes=stderr.omitted_bytes if stderr else 0,
            stdout_gap=stdout.gap if stdout else None,
            stderr_gap=stderr.gap if stderr else None,
            run_ns=self.end_ns - self.start_ns,
            total_ns=now_ns() - called_ns,
            cpu_ns=self.usage[0],
            max_rss_bytes=self.usage[1],
        )

    def _on_exit(self) -> None:
        self.end_ns = now_ns()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._deadline is not None:
            self._deadline.cancel()
        if self.background and self.ending is None:
            # Its pid stays taken, as a zombie, until the sandbox goes: the group must not change its meaning.
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            if info is not None:
                self.status = info.si_status << 8 if info.si_code == os.CLD_EXITED else info.si_status
        else:
            self.background = False
            # The zombie still holds its pid, so this is its group and no other.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            _, self.status, usage = os.wait4(self.pid, 0)
            self.usage = int((usage.ru_utime + usage.ru_stime) * 1e9), usage.ru_maxrss << 10
        self.exited.set_result(None)


def spawn(
    argv: Sequence[bytes],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdin: int,
    merge_stderr: bool,
    pass_fd: int | None = None,
) -> Child:
    """Start a command. Raises `NotStarted`, or `Misuse` for a `cwd` that is none and arguments that are too long."""
    pipes: list[int] = []
    ends: list[int] = []
    try:
        for _ in range(1 if merge_stderr else 2):
            ours, theirs = os.pipe2(os.O_CLOEXEC)
            pipes.append(ours)
            ends.append(theirs)
            os.set_blocking(ours, False)
        start_ns = now_ns()
        # No preexec_fn, user or group: with any of them CPython forks instead of vforking. Python's own descriptors
        # are close-on-exec, so closing the rest one by one is not needed.
        process = subprocess.Popen(
            argv,
            executable=_found(argv[0], env),
            stdin=stdin,
            stdout=ends[0],
            stderr=subprocess.STDOUT if merge_stderr else ends[1],
            cwd=cwd,
            env=env,
            start_new_session=True,
            close_fds=pass_fd is not None,
            pass_fds=() if pass_fd is None else (pass_fd,),
        )
        process.returncode = 0  # Reaping is ours: Popen shall neither wait nor warn.
        return Child(asyncio.get_running_loop(), process.pid, pipes, start_ns)
    except OSError as error:
        for fd in pipes:
            os.close(fd)
        raise _classified(error, cwd) from None
    finally:
        for fd in ends:
            os.close(fd)


def _found(program: bytes, env: Mapping[str, str]) -> bytes | None:
    """Find the program on PATH; None leaves the search, and its errors, to exec.

    Looking here costs a microsecond for each directory, in the child it is a failed execve.
    """
    if b"/" in program or "PATH" not in env:
        return None
    for directory in env["PATH"].encode(errors="surrogateescape").split(b":"):
        path = directory + b"/" + program
        if directory.startswith(b"/") and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _classified(error: OSError, cwd: str) -> Exception:
    if error.filename == cwd:
        return Misuse(f"{cwd!r}: {error.strerror}", field="cwd")
    if error.errno == errno.E2BIG:
        return Misuse("arguments and environment are longer than the kernel takes", field="command")
    if error.errno in _NOT_RUN and error.filename is not None:
        return NotStarted(_NOT_RUN[error.errno], f"{os.fsdecode(error.filename)}: {error.strerror}\n")
    return told(error, "host")


class Collector:
    """Reads a child's pipes into captures until it has ended."""

    __slots__ = ("_child", "_late", "_loop", "_on_over", "_watched", "streams")

    def __init__(self, child: Child, limit_bytes: int, on_over: Callable[[], None] | None = None) -> None:
        self.streams = [CappedOutput(limit_bytes) for _ in child.pipes]
        self._child = child
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._watched = False
        self._late = self._loop.call_later(PIPES_AFTER_S, self._watch)

    def finish(self) -> None:
        """Take what is left in the pipes and let go of them."""
        self._late.cancel()
        for index in range(len(self.streams)):
            # Bounded: somebody who outlived the command may write without end.
            for _ in range(_LAST_READS):
                if self._read(index) <= 0:
                    break
        if self._watched:
            for fd in self._child.pipes:
                self._loop.remove_reader(fd)
        self._child.close()

    def _watch(self) -> None:
        self._watched = True
        for index, fd in enumerate(self._child.pipes):
            self._loop.add_reader(fd, self._readable, index)

    def _readable(self, index: int) -> None:
        if self._read(index) == 0:
            self._loop.remove_reader(self._child.pipes[index])

    def _read(self, index: int) -> int:
        """Read from a stream: the number of bytes; 0: the stream has ended, -1: nothing now."""
        try:
            data = os.read(self._child.pipes[index], CHUNK_BYTES)
        except BlockingIOError:
            return -1
        if data:
            stream = self.streams[index]
            stream.add(data)
            if stream.over and self._on_over:
                self._on_over()
        return len(data)


async def settle(child: Child) -> None:
    """Wait for a child's end; if the wait is cancelled, its whole tree dies first. For one waiter."""
    try:
        await child.exited
    except asyncio.CancelledError:
        if child.end_ns == 0:
            child.exited = asyncio.get_running_loop().create_future()
            child.kill("cancelled")
            await finish(gone(child))
        raise


async def gone(child: Child) -> None:
    """Wait until a child has been reaped, beside whoever else waits for it."""
    while child.end_ns == 0:
        await asyncio.wait([child.exited])


def outcome_not_started(failure: NotStarted, called_ns: int, *, merge_stderr: bool) -> Outcome:
    """Outcome of a program that does not exist, as a shell would report it."""
    text = str(failure).encode(errors="surrogateescape")
    total_ns = now_ns() - called_ns
    out, err = (text, b"") if merge_stderr else (b"", text)
    return Outcome(ending="exit", exit_code=failure.code, stdout=out, stderr=err, run_ns=total_ns, total_ns=total_ns)


def memory_file(data: bytes | bytearray | memoryview) -> int:
    """A command's whole input, as a file it can read without anyone feeding it."""
    try:
        fd = os.memfd_create("dutyfree-stdin", os.MFD_CLOEXEC)
    except OSError as error:
        raise told(error, "host") from error
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def settle_once(ready: asyncio.Future[None]) -> None:
    """For callbacks of the loop that may come twice."""
    if not ready.done():
        ready.set_result(None)
