"""Probes 47 to 50, 52, 53, 57, 59 and 65: using up what is limited. The culprit fails; a sibling works on meanwhile.

Every bomb is bounded by itself, a few times over its limit, so that a substrate that does not hold it is found out
and the machine survives.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.probe.scene import Attempt, Stage, need, stage, unenforced
from dutyfree.probe.verdict import Probe, Verdict, broke, held

PIDS = 64
MEMORY_BYTES = 64 << 20
DISK_BYTES = 16 << 20
FILES = 2048
_PLACES = ("/tmp", "/var/tmp", "/root", "/dev/shm", "/run", "/home", "/var/lib")  # noqa: S108


async def beside(sibling: Stage, attempt: Awaitable[Attempt]) -> tuple[Attempt, int]:
    """Run the attempt while a sibling acts, again and again; how often the sibling managed, -1 if it ever failed."""
    task = asyncio.ensure_future(attempt)
    actions = 0
    try:
        while not task.done() or actions == 0:
            if not await sibling.alive():
                return await task, -1
            actions += 1
        return await task, actions
    finally:
        task.cancel()


def judged(fault: str | None, actions: int, fact: str) -> Verdict:
    """The fault, or a disturbed sibling, or the fact."""
    if fault:
        return broke(fault)
    return (
        broke("a sibling was disturbed") if actions < 0 else held(f"{fact}; a sibling acted {actions} times meanwhile")
    )


async def fork_bomb(substrate: Substrate) -> Verdict:
    """47: processes."""
    if missing := unenforced(substrate, "pids"):
        return broke(missing)
    async with stage(substrate, pids=PIDS) as culprit, stage(substrate) as sibling:
        tried, actions = await beside(sibling, culprit.attempt("fork-bomb", most=8 * PIDS, hold_s=1))
        lived = tried.said.get("lived", 0)
        fault = f"{lived} processes at once, the limit is {PIDS}" if lived > PIDS + 2 else None
        if not fault and not await culprit.alive():
            fault = "the sandbox did not survive its own bomb"
        return judged(fault, actions, f"{lived} processes at once, the limit is {PIDS}")


async def thread_bomb(substrate: Substrate) -> Verdict:
    """48: threads count as processes."""
    if missing := unenforced(substrate, "pids"):
        return broke(missing)
    async with stage(substrate, pids=PIDS) as culprit, stage(substrate) as sibling:
        tried, actions = await beside(sibling, culprit.attempt("thread-bomb", most=8 * PIDS))
        lived = tried.said.get("lived", 0)
        fault = f"{lived} threads at once, the limit is {PIDS}" if lived > PIDS + 2 else None
        return judged(fault, actions, f"{lived} threads at once, the limit is {PIDS}")


async def memory_bomb(substrate: Substrate) -> Verdict:
    """49: memory; the outcome says so."""
    if missing := unenforced(substrate, "memory_bytes"):
        return broke(missing)
    async with stage(substrate, memory_bytes=MEMORY_BYTES) as culprit, stage(substrate) as sibling:
        bomb = culprit.attempt("memory-bomb", most_bytes=4 * MEMORY_BYTES)
        tried, actions = await beside(sibling, bomb)
        fault = None
        if tried.said.get("touched"):
            fault = f"touched {tried.said['touched']} bytes, the limit is {MEMORY_BYTES}"
        elif tried.outcome.ending != "oom":
            fault = f"it was stopped, but the outcome says {tried.outcome.ending!r} and not 'oom'"
        elif not await culprit.alive():
            fault = "the sandbox did not survive its own bomb"
        return judged(fault, actions, "killed, and the outcome says oom")


async def memory_files(substrate: Substrate) -> Verdict:
    """50: files in memory count as memory."""
    if missing := unenforced(substrate, "memory_bytes"):
        return broke(missing)
    async with stage(substrate, memory_bytes=MEMORY_BYTES) as culprit, stage(substrate) as sibling:
        fill = culprit.attempt("fill", places=["/dev/shm"], most_bytes=4 * MEMORY_BYTES)  # noqa: S108
        tried, actions = await beside(sibling, fill)
        written = sum(tried.said.get("written", {}).values())
        fault = f"{written} bytes in /dev/shm, the limit is {MEMORY_BYTES}" if written > MEMORY_BYTES else None
        return judged(fault, actions, f"stopped ({tried.outcome.ending}, {written} bytes)")


async def disk_fill(substrate: Substrate) -> Verdict:
    """52: bytes, over all places that can be written together."""
    if missing := unenforced(substrate, "disk_bytes"):
        return broke(missing)
    async with stage(substrate, disk_bytes=DISK_BYTES) as culprit, stage(substrate) as sibling:
        fill = culprit.attempt("fill", places=_PLACES, most_bytes=4 * DISK_BYTES)
        tried, actions = await beside(sibling, fill)
        written = sum(tried.said.get("written", {}).values())
        fault = None
        if written > DISK_BYTES or not written:
            fault = f"{written} bytes could be written, the limit is {DISK_BYTES}"
        elif not await _writes(sibling.box):
            fault = "a sibling cannot write any more"
        return judged(fault, actions, f"{written} bytes, the limit is {DISK_BYTES}")


async def _writes(box: Sandbox) -> bool:
    path = "/tmp/after"  # noqa: S108 (inside the sandbox)
    await box.write(path, b"x" * 65_536)
    return len(await box.read(path)) == 65_536


async def inode_fill(substrate: Substrate) -> Verdict:
    """53: files."""
    if missing := unenforced(substrate, "files"):
        return broke(missing)
    async with stage(substrate, files=FILES) as culprit, stage(substrate) as sibling:
        tried, actions = await beside(sibling, culprit.attempt("fill-inodes", place="/tmp", most=4 * FILES))  # noqa: S108
        made = tried.said.get("made", 0)
        fault = f"{made} files, the limit is {FILES}" if made > FILES * 1.05 or not made else None
        return judged(fault, actions, f"{made} files, the limit is {FILES}")


async def endless_output(substrate: Substrate) -> Verdict:
    """57: capped, flagged, and not kept in the host's memory; fatal where the caller wants that."""
    limit = 1 << 20
    async with stage(substrate) as culprit, stage(substrate) as sibling:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        flood = culprit.box.run(
            culprit.command("flood", size=1 << 30, chunk=1 << 20), timeout_s=60, output_limit_bytes=limit
        )
        outcome = await flood
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        words = culprit.command("flood", size=10 << 30, chunk=1 << 20)
        fatal = await culprit.box.run(words, timeout_s=60, output_limit_bytes=limit, kill_on_output_limit=True)
        actions = 1 if await sibling.alive() else -1
    fault = None
    if len(outcome.stdout) > limit or len(fatal.stdout) > limit:
        fault = f"{len(outcome.stdout)} bytes were kept, the limit is {limit}"
    elif not outcome.truncated or outcome.omitted_bytes + len(outcome.stdout) < 1 << 30:
        fault = f"1 GiB was written, and {outcome.omitted_bytes} bytes are said to be missing"
    elif fatal.ending != "output-limit":
        fault = f"10 GiB were to be fatal, and the ending is {fatal.ending!r}"
    elif grown > 64 << 20:
        fault = f"the host's memory grew by {grown >> 20} MiB"
    return judged(fault, actions, "capped and flagged")


async def tiny_writes(substrate: Substrate) -> Verdict:
    """65: a million one-byte writes; the host handles far fewer pieces."""
    async with stage(substrate) as culprit, stage(substrate) as sibling:
        flood = culprit.attempt("flood", size=1_000_000, chunk=1, timeout_s=60)
        tried, actions = await beside(sibling, flood)
        size = tried.outcome.stdout.count(b"x")
        need(tried.outcome.ending != "timeout", f"only {size} bytes were written in time")
        fault = None if size == 1_000_000 else f"{size} of a million bytes arrived"
        return judged(fault, actions, "every byte arrived")


async def long_arguments(substrate: Substrate) -> Verdict:
    """59: arguments at and over what the kernel takes."""
    async with stage(substrate) as box:
        for size in (1 << 16, (1 << 17) - 1, 1 << 17, 1 << 21, 1 << 23):
            try:
                outcome = await box.box.run(["true", "x" * size], timeout_s=30)
            except Misuse:
                continue
            except SandboxLost:
                return broke(f"an argument of {size} bytes ended the sandbox")
            if size < 1 << 17 and not outcome.ok:
                return broke(f"an argument of {size} bytes was refused: {outcome.stderr[:80]!r}")
        return held("taken or refused, and the sandbox went on") if await box.alive() else broke("the sandbox died")


PROBES = (
    Probe(id=47, name="fork-bomb", group="exhaustion", run=fork_bomb),
    Probe(id=48, name="thread-bomb", group="exhaustion", run=thread_bomb),
    Probe(id=49, name="memory-bomb", group="exhaustion", run=memory_bomb),
    Probe(id=50, name="files-in-memory", group="exhaustion", run=memory_files),
    Probe(id=52, name="disk-fill", group="exhaustion", run=disk_fill),
    Probe(id=53, name="inode-fill", group="exhaustion", run=inode_fill),
    Probe(id=57, name="endless-output", group="exhaustion", run=endless_output),
    Probe(id=59, name="long-arguments", group="exhaustion", run=long_arguments),
    Probe(id=65, name="tiny-writes", group="exhaustion", run=tiny_writes),
)
