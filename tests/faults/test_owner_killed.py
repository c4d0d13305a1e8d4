"""kill -9 of the Python process that owns sandboxes: everything goes with it."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from family import cgroups_of, descendants, spawners, stays, survivors, watch

OWNER = Path(__file__).with_name("owner.py")


def start(*words):
    return subprocess.Popen([sys.executable, OWNER, *words], stdout=subprocess.PIPE, text=True)


def dead_loops():
    """Loop devices whose file is deleted, as the files of disks are, by name and number."""
    found = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # another owner's, which goes meanwhile
            found |= {f"{path.parts[3]} {path.read_text()}"} if "deleted" in path.read_text() else set()
    return found


def kill_after(owner, steps):
    """Kill the owner after so many of its steps; its spawner, which must end by itself."""
    for _ in range(steps):
        assert owner.stdout.readline()
    (spawner,) = spawners(owner.pid)
    family = watch(descendants(owner.pid))
    owner.kill()
    owner.stdout.close()
    owner.wait()
    assert survivors(family) == []
    # Blanks made after we looked are collected by the spawner before it ends, and it has ended.
    assert cgroups_of(spawner) == []


@pytest.mark.parametrize("seed", range(25))
def test_killing_the_owner_at_a_random_step_leaves_nothing(seed):
    kill_after(start(), random.Random(seed).randint(1, 200))


@pytest.mark.skipif(os.geteuid() != 0, reason="disk storage needs root: sudo make test")
@pytest.mark.parametrize("seed", range(5))
def test_killing_an_owner_of_disks_leaves_no_loop_device(seed):
    before = dead_loops()
    kill_after(start("disk"), random.Random(seed).randint(1, 20))
    assert stays(dead_loops, before) == set()


def test_a_fork_of_the_owner_that_keeps_its_descriptors_keeps_no_sandbox_alive():
    owner = start("fork")
    words = owner.stdout.readline().split()
    while words[0] != "forked":
        words = owner.stdout.readline().split()
    fork = int(words[1])
    (spawner,) = spawners(owner.pid)
    family = watch([pid for pid in descendants(owner.pid) if pid != fork])
    owner.kill()
    owner.wait()
    try:
        assert survivors(family) == []
        assert cgroups_of(spawner) == []
    finally:
        os.kill(fork, signal.SIGKILL)
        owner.stdout.close()


def test_terminating_the_owner_by_ctrl_c_leaves_nothing():
    owner = start()
    for _ in range(20):
        owner.stdout.readline()
    family = watch(descendants(owner.pid))
    owner.send_signal(signal.SIGINT)
    owner.stdout.close()
    owner.wait()
    assert survivors(family) == []
