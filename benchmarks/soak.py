"""`make soak`: very many sandboxes, one after the other and side by side, and what is left of them.

    .venv/bin/python -m benchmarks.soak [--cycles 50000] [--parallel 8] [--substrate native]

A cycle is create, run, write, read, destroy. Exit code 1 if anything of ours is left, if memory grows with the cycles, or
if kernel objects of the machine stay grown by more than a hundredth of the cycles and what others may have made meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable

import dutyfree
from benchmarks.accounting import Account, read_account, read_rss, slope
from dutyfree.driver.program import poll
from dutyfree.testing.leaks import holdings, leaked

READINGS = 50
MOST_RSS_BYTES_PER_CYCLE = 64.0
_ARENA_BYTES = 1 << 20
"""What Python takes of the system at once: one more is no leak yet, which only a short run would take it for."""
_STOCK_DESCRIPTORS = 40
"""Of blanks that were being made at one reading and not at the other."""
_OTHERS = 100
"""Kernel objects that others may have made meanwhile."""
_PATIENCE_S = 20.0
"""How long the kernel may take to free what nobody has any more: dying cgroups, network namespaces."""

Say = Callable[[str], None]


async def _cycle(substrate: dutyfree.Substrate, number: int) -> None:
    async with substrate.create() as box:
        outcome = await box.run(["echo", str(number)])
        if outcome.stdout != f"{number}\n".encode():
            raise AssertionError(f"cycle {number} ended as {outcome}")
        await box.write("/tmp/file", b"x" * 4096)
        if await box.read("/tmp/file") != b"x" * 4096:
            raise AssertionError(f"cycle {number} read something else than it wrote")


async def _soak(name: str, cycles: int, parallel: int, say: Say) -> tuple[list[tuple[int, int]], Account, Account]:
    points: list[tuple[int, int]] = []
    every = max(1, cycles // READINGS)
    done = 0
    async with dutyfree.connect(name) as substrate:
        for number in range(min(cycles, 20 * parallel)):  # what grows once is not a leak
            await _cycle(substrate, number)
        before, start = read_account(), time.monotonic()
        numbers = iter(range(cycles))

        async def worker() -> None:
            nonlocal done
            for number in numbers:
                await _cycle(substrate, number)
                done += 1
                if done % every == 0:
                    points.append((done, read_rss()))
                    if done % (10 * every) == 0:
                        say(f"{done} cycles, {done / (time.monotonic() - start):.0f}/s, {points[-1][1] >> 20} MiB")

        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(worker())

        async def settled() -> Account | None:
            after = read_account()
            return None if faults_of(points, before, after, cycles) else after

        return points, before, await poll(settled, deadline_s=_PATIENCE_S) or read_account()


def faults_of(points: list[tuple[int, int]], before: Account, after: Account, cycles: int) -> list[str]:
    """What grew that should not."""
    found = []
    grows = slope(points[len(points) // 2 :])
    if grows > MOST_RSS_BYTES_PER_CYCLE and grows * cycles / 2 > _ARENA_BYTES:
        found.append(f"memory grows by {grows:.1f} bytes a cycle")
    if after.descriptors > before.descriptors + _STOCK_DESCRIPTORS:
        found.append(f"the spawner has {after.descriptors} descriptors, and had {before.descriptors}")
    for name, count in after.kernel.items():
        grown = count - before.kernel.get(name, 0)
        if grown > _OTHERS + cycles // 100:
            found.append(f"{grown} more {name}")
    if after.disk_bytes - before.disk_bytes > _OTHERS << 10:
        found.append(f"{after.disk_bytes - before.disk_bytes} more bytes in the store")
    if after.inodes - before.inodes > _OTHERS:
        found.append(f"{after.inodes - before.inodes} more inodes in the store")
    return found


def soak(name: str, cycles: int, parallel: int, say: Say) -> list[str]:
    """Run it; what is wrong afterwards, nothing if nothing is."""
    held = holdings()
    start = time.monotonic()
    points, before, after = asyncio.run(_soak(name, cycles, parallel, say))
    faults = faults_of(points, before, after, cycles)
    faults += [f"left behind: {kind} {what}" for kind, what in leaked(held)]
    say(
        f"{cycles} cycles in {time.monotonic() - start:.0f} s; memory slope {slope(points[len(points) // 2 :]):.1f} bytes a cycle"
    )
    for key, count in after.kernel.items():
        say(f"  {key}: {before.kernel.get(key, 0)} -> {count}")
    say(f"  descriptors of the spawner: {before.descriptors} -> {after.descriptors}")
    say(f"  the store: {before.disk_bytes} -> {after.disk_bytes} bytes, {before.inodes} -> {after.inodes} inodes")
    return faults


def main() -> None:
    """Exit code 1 and the list, if anything leaked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=50_000)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("-s", "--substrate", default="native")
    args = parser.parse_args()
    faults = soak(args.substrate, args.cycles, args.parallel, lambda line: print(line, flush=True))
    print("\n".join(faults) if faults else "nothing leaked")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
