"""A client of a substrate in a process of its own, to be killed: what stays of its sandboxes is what the tests ask."""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 60.0
"""After which something that should be gone counts as left; it takes moments on a calm machine."""

CLIENT = """
import asyncio, sys
from dutyfree.core.spec import Spec
from dutyfree.substrates.registry import connect

async def main(name, mark):
    async with connect(name) as substrate:
        box = await substrate.create(Spec(image="bench"))
        running = asyncio.ensure_future(box.run(["sleep", mark]))
        await box.run(["true"])
        EXTRA
        print(box.id, flush=True)
        await running

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def client(name, mark, extra="pass"):
    """A process that holds a sandbox in which `sleep MARK` runs, and that did `extra` before; gives it and the sandbox's id."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT.replace("EXTRA", extra), name, mark], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def sleepers(mark):
    """Processes of this machine that run `sleep MARK`."""
    wanted = b"sleep\0" + mark.encode() + b"\0"
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_bytes() == wanted:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def ends(pid):
    """The process is gone within our patience."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], PATIENCE_S)[0])
    finally:
        os.close(fd)


def until(condition):
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not come true"
        select.select([], [], [], 0.02)
