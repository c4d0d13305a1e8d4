"""kill -9 of a client of a container driver, while it creates and while it runs a command: nothing stays, nothing runs on."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dutyfree.substrates.registry import connect, find

CLIENT = Path(__file__).with_name("killed_client.py")
PATIENCE_S = 100.0
pytestmark = pytest.mark.slow("container engines and runtimes")

MOMENTS = (0.05, 0.25, 0.5, 0.75, 0.95, 1.5)


@pytest.fixture(params=["docker", "podman", "runc", "gvisor"])
def substrate(request, bench):
    if request.param == "docker":
        return f"docker?socket={request.getfixturevalue('docker_engine')}"
    found = find(request.param)[0].probe()
    if not found.available:
        pytest.skip(f"{request.param}: {found.reason}; enable: {found.enable}")
    return request.param


def processes(*marks):
    """Of this machine, whose command has one of the marks in it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:
            continue
        if any(mark.encode() in words for mark in marks):
            found.append(entry.name)
    return found


async def remains(name, client):
    """What a fresh client finds of a dead one's sandboxes, after its sweep."""
    prefix = f"dutyfree-{name.partition('?')[0]}-{client}-"
    async with connect(name) as fresh:
        places = [Path("/dev/shm"), *Path("/sys/fs/cgroup").iterdir()]
        if name in ("runc", "gvisor"):
            home = fresh._runtime.home
            places += [home, home / "state"]
            known = []
        else:
            reply = await fresh._http.call("GET", "/containers/json", all=1)
            known = [one.lstrip("/") for found in reply.json() for one in found["Names"] if prefix in one]
    return known + [str(path) for place in places if place.is_dir() for path in place.glob(f"*{prefix}*")]


@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_is_left_after_the_next_sweep_and_no_command_runs_on(substrate, moment):
    mark = f"86403.{os.getpid()}{int(moment * 100):03}"
    victim = subprocess.Popen([sys.executable, CLIENT, substrate, str(moment), mark])
    assert victim.wait() == -signal.SIGKILL
    end_s = time.monotonic() + PATIENCE_S
    # The engine may still be busy with the dead client's request: what it makes then is the next sweep's.
    while left := asyncio.run(remains(substrate, victim.pid)) + processes(mark, f"-{victim.pid}-"):
        assert time.monotonic() < end_s, left
    assert not os.path.exists(f"/proc/{victim.pid}")
