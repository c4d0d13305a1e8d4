"""Our standard streams as a command's: byte for byte, or as its terminal.

The terminal is restored at every end but SIGKILL, after which the user types `reset`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import termios
import tty
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from dutyfree.core.contract import Command, Process, Sandbox, TerminalSize
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome

SHELL = "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi"
"""What a terminal gets where no command is given."""

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_CHUNK_BYTES = 1 << 20


class Ended(Exception):
    """We were asked to end by a signal, whose number is the argument."""


async def relay(box: Sandbox, command: Command, *, timeout_s: float | None, cwd: str | None) -> Outcome:
    """Forward our streams as they come, or all input before and all output after where nothing streams."""
    if not box.capabilities.stream:
        outcome = await box.run(command, timeout_s=timeout_s, cwd=cwd, stdin=await all_input())
        write_all(1, outcome.stdout)
        write_all(2, outcome.stderr)
        return outcome
    process = await box.start(command, timeout_s=timeout_s, cwd=cwd, stdin=b"" if _no_input() else None)
    if _no_input():
        return await _show(process)
    async with _beside(_feed(process)):
        return await _show(process)


async def attend(box: Sandbox, command: Command, *, timeout_s: float | None, cwd: str | None) -> Outcome:
    """Our terminal as the command's. Raises `Ended` when a signal ends us meanwhile."""
    if not os.isatty(0):
        raise Misuse("standard input is not a terminal", field="--tty")
    env = {"TERM": os.environ.get("TERM", "xterm"), **box.spec.env}
    process = await box.start(command, timeout_s=timeout_s, cwd=cwd, env=env, stdin=None, terminal=_size())
    with _raw_terminal():
        async with _ended_by_signals(), _beside(_feed(process)), _beside(_follow_size(process)):
            return await _show(process)


async def all_input() -> bytes:
    """Read all of our stdin."""
    return b"" if _no_input() else await asyncio.to_thread(sys.stdin.buffer.read)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def _show(process: Process) -> Outcome:
    async for name, data in process:
        write_all(1 if name == "stdout" else 2, data)
    return await process.wait()


async def _feed(process: Process) -> None:
    """Forward our stdin. The loop waits for a terminal or pipe, so that the command's end ends us."""
    if stat.S_ISREG(os.fstat(0).st_mode):
        while data := os.read(0, _CHUNK_BYTES):
            await process.write(data)
    else:
        while data := await _readable():
            await process.write(data)
    await process.close_stdin()


async def _readable() -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(0, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(0)
    return os.read(0, _CHUNK_BYTES)


async def _follow_size(process: Process) -> None:
    """Tell the command's terminal each new size of ours, also one of while it was started."""
    changed = asyncio.Event()
    changed.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while await changed.wait():
            changed.clear()
            await process.resize(_size())
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


def _size() -> TerminalSize:
    """The size of the terminal itself; COLUMNS and LINES, once exported, stay what they were."""
    found = os.get_terminal_size(0)
    return TerminalSize(rows=found.lines or 24, columns=found.columns or 80)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Keys go to the command as they are typed, Ctrl-C too."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # keys typed ahead are kept
        yield
    finally:
        # A terminal that was hung up cannot be restored, and need not be.
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)


@asynccontextmanager
async def _ended_by_signals() -> AsyncIterator[None]:
    """Cancel the block at signals that would end us at once, so that the terminal is restored."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    caught: list[int] = []

    def end(number: int) -> None:
        caught.append(number)
        if task is not None:
            task.cancel()

    for number in _ENDING:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if not caught:
            raise
        raise Ended(caught[0]) from None
    finally:
        for number in _ENDING:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Do something as long as the block takes."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _no_input() -> bool:
    """Say whether stdin has nothing to read: closed, or /dev/null, which the loop cannot watch."""
    try:
        return os.path.samestat(os.fstat(0), os.stat(os.devnull))
    except OSError:
        return True
