"""Short-lived programs beside the event loop: started, watched by pidfd, never left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """How a program ended and what it said."""

    code: int
    output: str
    """Of both streams together."""


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


async def run_program(argv: Sequence[str]) -> Finished:
    """Run a program that says little; its output is kept in memory."""
    output = os.memfd_create("dutyfree-output", os.MFD_CLOEXEC)
    try:
        code = await exit_of(start(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        said = os.pread(output, 1 << 20, 0).decode(errors="replace")
        return Finished(code=code, output=said)
    finally:
        os.close(output)
