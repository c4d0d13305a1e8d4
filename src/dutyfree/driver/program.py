"""Run short-lived programs beside the event loop, never left behind; and poll what announces nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from dutyfree.core.errors import DriverError
from dutyfree.driver.exec_call import STDERR, STDOUT, ExecCall, Sink

T = TypeVar("T")

PIECE = 1 << 18
_FIRST = 4096
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramEnd:
    """End of a program, with its output."""

    code: int
    output: str
    """Output of both streams together."""


async def exit_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child's end. Cancelled: it is killed first."""
    if process.poll() is not None:
        return process.returncode
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    fd = os.pidfd_open(process.pid)
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
        if not ended.is_set():
            process.kill()
        process.wait()
    return process.returncode


def start(argv: Sequence[str], *, stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    """Start a program on descriptors that the caller closes. It sees none of our other ones."""
    return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd="/")


async def run_program(*argv: str) -> ProgramEnd:
    """Run a program that says little; its output is kept in memory."""
    output = os.memfd_create("dutyfree-output", os.MFD_CLOEXEC)
    try:
        code = await exit_of(start(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        said = os.pread(output, 1 << 20, 0).decode(errors="replace")
        return ProgramEnd(code=code, output=said)
    finally:
        os.close(output)


async def stream_program(argv: Sequence[str], call: ExecCall, sink: Sink) -> ProgramEnd:
    """Run a program that is an exec call (`runc exec`, `ssh`): input and output go by sockets, and nothing of them is
    kept but the beginning of stderr, or of stdout where stderr is empty.
    """
    pairs = [socket.socketpair() for _ in range(3)]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for end in ours:
        end.setblocking(False)
    try:
        process = start(argv, stdin=theirs[0].fileno(), stdout=theirs[1].fileno(), stderr=theirs[2].fileno())
    except OSError as error:
        for end in ours:
            end.close()
        raise DriverError(f"cannot start {argv[0]}: {error.strerror}", step="exec") from error
    finally:
        for end in theirs:
            end.close()
    heard = _Heard(sink)
    feeder = asyncio.ensure_future(feed(ours[0], call))
    drains = asyncio.gather(drain(ours[1], STDOUT, heard), drain(ours[2], STDERR, heard))
    try:
        code = await exit_of(process)
        await drains
        return ProgramEnd(code=code, output=(heard.first[STDERR] or heard.first[STDOUT]).decode(errors="replace"))
    finally:
        feeder.cancel()
        drains.cancel()
        await asyncio.wait({feeder, asyncio.ensure_future(_over(drains))})
        for end in ours:
            end.close()


class _Heard:
    """A sink in front of another one, which remembers how each stream began."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.first = {STDOUT: b"", STDERR: b""}

    async def add(self, stream: int, data: bytes) -> None:
        """Hand it on."""
        if len(self.first[stream]) < _FIRST:
            self.first[stream] = (self.first[stream] + data)[:_FIRST]
        await self._sink.add(stream, data)


async def _over(work: asyncio.Future[Any]) -> None:
    with suppress(asyncio.CancelledError, OSError):
        await work


async def feed(connection: socket.socket, wanted: ExecCall) -> None:
    """Send a command's input, then its end. Input that nobody reads is no error."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        async with aclosing(wanted.input(PIECE)) as pieces:
            async for piece in pieces:
                await loop.sock_sendall(connection, piece)
        connection.shutdown(socket.SHUT_WR)


async def drain(connection: socket.socket, stream: int, sink: Sink) -> None:
    """Hand a stream on until it ends."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await loop.sock_recv(connection, PIECE):
            await sink.add(stream, data)


async def poll(
    ask: Callable[[], Awaitable[T | None]], *, deadline_s: float, longest_pause_s: float = LONGEST_PAUSE_S
) -> T | None:
    """The first answer that is not None; None if there was none in time. Pauses double, so a quick answer is seen quickly."""
    clock = asyncio.get_running_loop()
    end = clock.time() + deadline_s
    pause_s = FIRST_PAUSE_S
    while (answer := await ask()) is None:
        if clock.time() >= end:
            return None
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_pause_s)
    return answer
