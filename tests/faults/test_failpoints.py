"""A fault at every named point of the spawner: the call fails or its caller dies, and nothing is lost or left.

After each: a command has one ending or the machinery says that it failed; no command ever ran without its limits; everything
is given back (the fixture around every test looks); the image is as it was; the next substrate works.
"""

import asyncio
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from invariants import HELD, SPEC, first_limits

import dutyfree
from dutyfree.substrates.native.substrate import open_native

NATIVE = Path(__file__).resolve().parents[2] / "native"
POINTS = (
    "mount", "umount2", "mkdir", "rmdir", "unshare", "setns", "open", "openat", "socketpair", "sendmsg", "recvmsg",
    "write", "setresuid", "seteuid", "clone3", "pivot_root", "seccomp", "syscall",
)  # fmt: skip
ERRORS = {
    "mount": "ENOSPC",
    "umount2": "EBUSY",
    "rmdir": "EBUSY",
    "clone3": "EAGAIN",
    "open": "EMFILE",
    "mkdir": "ENOSPC",
}
QUICK = ("mount", "unshare")
SLOW = pytest.mark.slow("every call of the spawner that can fail")
SHOWN = [point if point in QUICK else pytest.param(point, marks=SLOW) for point in POINTS]
CALLS = (1, 2, 3, 5, 8, 13, 40)
"""Which call of that name: those of the start, of the first blanks, and of births."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the spawner has all its points only as root: sudo make test")


@pytest.fixture(scope="session")
def program():
    command = ["flock", str(NATIVE), "make", "-s", "-C", str(NATIVE), "FAULTS=1", "build-faults/dutyfree-spawner"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return NATIVE / "build-faults" / "dutyfree-spawner"


def faulty(program, folder, fault):
    """The spawner starts with an empty environment: a script gives it one."""
    path = folder / "dutyfree-spawner"
    path.write_text(f'#!/bin/sh\nDUTYFREE_FAULT={fault} exec {program} "$@"\n')
    path.chmod(0o755)
    return path


async def use(program):
    """Three sandboxes at once, and one after; what each came to."""
    try:
        substrate = await open_native(program, cgroup="auto", stock=2, version="faulty")
    except dutyfree.Unavailable as error:
        return [type(error).__name__]

    async def one():
        try:
            async with substrate.create(dutyfree.Spec(**SPEC)) as box:
                mark = f"first{secrets.token_hex(8)}"
                process = await box.start(["sh", "-c", "echo up; read line", mark], stdin=None)
                async for _ in process:
                    assert first_limits(mark) in (HELD, None)
                    break
                await process.kill()
                outcome = await box.run(["echo", "whole"], timeout_s=30)
                assert outcome.ending == "exit"
                assert outcome.stdout == b"whole\n"
                return "done"
        except dutyfree.DutyfreeError as error:
            return type(error).__name__

    try:
        ended = await asyncio.gather(one(), one(), one())
        return [*ended, await one()]
    finally:
        await substrate.close()


FAILURES = {"DriverError", "Saturated", "SandboxLost", "Unavailable", "Unsupported"}
"""The last: a spawner that got no cgroups offers no limits, and refuses who asks for them."""


def check(program):
    ended = asyncio.run(asyncio.wait_for(use(program), 60))
    assert set(ended) <= FAILURES | {"done"}


def works_after(program, folder):
    """The next one works, and sweeps the cgroups of a spawner that could not do it itself any more."""
    assert asyncio.run(use(faulty(program, folder, "none:0:none"))) == ["done"] * 4


@pytest.mark.parametrize("point", SHOWN)
def test_a_call_of_the_spawner_that_fails_loses_and_leaves_nothing(point, program, tmp_path):
    for number in CALLS:
        check(faulty(program, tmp_path, f"{point}:{number}:{ERRORS.get(point, 'EIO')}"))
    works_after(program, tmp_path)


@pytest.mark.parametrize("point", SHOWN)
def test_the_death_of_whoever_makes_the_call_loses_and_leaves_nothing(point, program, tmp_path):
    for number in CALLS:
        check(faulty(program, tmp_path, f"{point}:{number}:kill"))
    works_after(program, tmp_path)


def test_a_build_that_was_asked_for_no_fault_has_none(program, tmp_path):
    works_after(program, tmp_path)


STORING = Path(__file__).with_name("storing.py")


@pytest.mark.slow("every fault while an image is stored")
@pytest.mark.parametrize("what", ["ENOSPC", "EIO", "EMFILE", "kill"])
@pytest.mark.parametrize("number", [1, 2, 4, 7, 11, 16, 23, 31, 45])
def test_a_fault_while_an_image_is_stored_leaves_the_old_image_or_the_new_one(what, number, tmp_path):
    """Faults at the file operations of the store, by an audit hook in a process of its own."""
    home, tree = tmp_path / "home", tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    for index in range(8):
        (tree / "d" / str(index)).write_text("content")
    environment = {**os.environ, "DUTYFREE_HOME": str(home)}
    command = [sys.executable, str(STORING), str(tree)]
    first = subprocess.run([*command, str(number), what], env=environment, capture_output=True, text=True, check=False)
    assert first.returncode in (0, 3, -9), first.stderr
    again = subprocess.run([*command, "0", "none"], env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert again.stdout.split() == ["content"] * 8
