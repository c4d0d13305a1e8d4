"""A whole rollout's life on a pool over native, with a fault at one point: says what it sees, one line of JSON each.

python faulty.py POINT NUMBER WHAT TREE          the tree is stored as an image first

Lines have one key: begun, ended (an action and its state) · claimed, returned (a sandbox) · keyed · first (limits at the first
instruction) · foreign (what another rollout left) · bytes (wrong output) · reward · refused (what failed) · fault · done.
"""

import asyncio
import hashlib
import itertools
import json
import os
import secrets
import sys
from pathlib import Path

from failpoint import arm, family
from invariants import ENDINGS, SPEC, first_limits

import dutyfree
from dutyfree.core.errors import SandboxLost
from dutyfree.image.intake import import_directory
from dutyfree.image.store import Store
from dutyfree.warm import Settings, open_pool

NUMBERS = itertools.count()
TEXT = b"".join(b"%d\n" % number for number in range(1, 20_001))
STAGE = dutyfree.Commands(commands=[f"echo {os.getpid()} > /built"])
"""One that no run before has built."""
RIGHT, WRONG = b"right\n", b"wrong\n"


def say(**words):
    os.write(1, json.dumps(words).encode() + b"\n")


def struck(**words):
    say(fault=words)


def failed(what, error):
    """Errors of ours are an answer; any other goes through and ends the process."""
    if isinstance(error, SandboxLost):
        say(refused=what, error="SandboxLost")
    elif isinstance(error, dutyfree.DutyfreeError):
        say(refused=what, error=type(error).__name__, message=error.message)
    else:
        raise error


async def act(box, command, **options):
    """One action; its outcome, or None if the machinery failed."""
    number = next(NUMBERS)
    say(begun=number)
    try:
        outcome = await box.run(command, **options)
    except SandboxLost:
        say(ended=number, state="sandbox-died")
        return None
    except dutyfree.DutyfreeError:
        say(ended=number, state="lost")
        return None
    assert outcome.ending in ENDINGS
    say(ended=number, state=outcome.ending)
    return outcome


async def use(lease):
    """What a rollout does; the first thing is to look at what holds it."""
    say(claimed=lease.inner.id)
    try:
        mark = f"first{secrets.token_hex(8)}"
        process = await lease.start(["sh", "-c", "echo up; read line", mark], stdin=None)
        async for _ in process:
            say(first=first_limits(mark))
            break
        await process.kill()
        found = await act(lease, "cat /root/mark* /tmp/mark* 2>/dev/null; true")
        if found is not None and found.stdout:
            say(foreign=found.text())
        await lease.write(f"/root/{mark.replace('first', 'mark')}", mark.encode())
        await act(lease, "setsid sleep 1000 & sleep 1000", timeout_s=0.2)
        await exact(lease)
    except (OSError, dutyfree.DutyfreeError) as error:
        failed("use", error)
    say(returned=lease.inner.id)


async def exact(lease):
    whole = await act(lease, ["seq", "20000"], timeout_s=60)
    if whole is not None and whole.stdout != TEXT:
        say(bytes=f"{len(whole.stdout)} bytes, {hashlib.sha256(whole.stdout).hexdigest()}")
    capped = await act(lease, ["seq", "20000"], timeout_s=60, output_limit_bytes=4096)
    if capped is None:
        return
    kept = len(capped.stdout)
    if kept > 4096 or kept + capped.omitted_bytes != len(TEXT) or not TEXT.startswith(capped.stdout[:2000]):
        say(bytes=f"{kept} kept and {capped.omitted_bytes} left out of {len(TEXT)}")


async def claim(pool, **fields):
    try:
        async with pool.claim(dutyfree.Spec(**SPEC, **fields)) as lease:
            await use(lease)
    except dutyfree.DutyfreeError as error:
        failed("claim", error)


async def keyed(pool):
    """Two who ask with one key get one sandbox."""

    async def one():
        try:
            lease = await pool.claim(dutyfree.Spec(**SPEC), key="same")
        except dutyfree.DutyfreeError as error:
            failed("keyed", error)
            return None
        say(keyed=lease.id)
        return lease

    leases = [lease for lease in await asyncio.gather(one(), one()) if lease is not None]
    for lease in leases:
        try:
            await lease.destroy()
        except dutyfree.DutyfreeError as error:
            failed("destroy", error)


async def reward(pool, solution):
    """A judgement is true, or there is none."""
    spec = dutyfree.Spec(**SPEC)
    check = dutyfree.Check(command=["grep", "-q", "right", "/root/solution"])
    try:
        async with pool.claim(spec) as lease:
            await lease.write("/root/solution", solution)
            found = await dutyfree.verify(pool, spec, lease, allow=["/root/solution"], checks=[check])
        say(reward=found.passed, truth=solution == RIGHT)
    except dutyfree.DutyfreeError as error:
        failed("reward", error)


async def deadline(pool):
    """A command that its deadline ends, whoever of us is stopped then."""
    try:
        async with pool.claim(dutyfree.Spec(**SPEC)) as lease:
            await act(lease, ["sh", "-c", "sleep 1000 & sleep 1000", f"deadline{os.getpid()}"], timeout_s=1.0)
    except dutyfree.DutyfreeError as error:
        failed("deadline", error)


def make_dear(pool):
    """So that resets and completing what is near are worth it: about the last ten creations are remembered."""
    for _ in range(60):
        pool.costs.seen("create", 60.0)


async def returned(pool):
    """Given back in order, when more are wanted than can have come meanwhile, it is reset."""
    spec = dutyfree.Spec(**SPEC)
    try:
        async with pool.claim(spec) as lease:
            await act(lease, ["true"])
            await pool.set_targets([(spec, 16)])
            make_dear(pool)
    except dutyfree.DutyfreeError as error:
        failed("returned", error)
    finally:
        await pool.set_targets([(spec, 2)])


async def live(pool):
    make_dear(pool)
    await asyncio.gather(deadline(pool), keyed(pool), *(claim(pool) for _ in range(3)))
    await returned(pool)
    await claim(pool, stages=(STAGE,))
    await pool.settled()
    await asyncio.gather(*(claim(pool, stages=(STAGE,)) for _ in range(2)))
    for solution in (RIGHT, WRONG):
        await reward(pool, solution)


def store(tree):
    """An image comes, is named, changes its name and goes."""
    place = Store.default()
    try:
        for name in ("one", "two"):
            place.names.give(name, import_directory(place, tree).key)
            (tree / "d" / "file").write_text(name)
        place.images.retire(place.named("one"))
        place.images.sweep()
    except (OSError, dutyfree.DutyfreeError) as error:
        say(refused="store", error=type(error).__name__)
    finally:
        place.close()


async def main(point, number, what, tree):
    arm(point, int(number), what, struck)
    store(Path(tree))
    try:
        settings = Settings(refill=2, idle=4)
        async with open_pool("native", targets=[(dutyfree.Spec(**SPEC), 2)], settings=settings) as pool:
            await pool.settled()
            await live(pool)
            say(family=family())
    except dutyfree.DutyfreeError as error:
        failed("pool", error)
    say(done=True)


asyncio.run(main(*sys.argv[1:]))
