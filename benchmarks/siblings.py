"""What a sibling notices: its action latency beside each bomb of probes 47 to 66, as a ratio to its calm value in one run.

    .venv/bin/python -m benchmarks.siblings [--substrate native] [--seconds 5]

Calm and bomb alternate, so that a machine that slows down for other reasons slows both. The bound of the specification is
p99 <= 3 x calm on 2 cores; a bomb above it is named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from contextlib import suppress
from typing import Any

import dutyfree
from dutyfree.probe.scene import Stage, stage

BOUND = 3.0
MEMORY_BYTES = 256 << 20
BOMBS: dict[str, tuple[str, dict[str, Any]]] = {
    "47 fork bomb": ("fork-bomb", {"most": 512, "hold_s": 1}),
    "48 thread bomb": ("thread-bomb", {"most": 512}),
    "49 memory bomb": ("memory-bomb", {"most_bytes": 4 * MEMORY_BYTES}),
    "50 files in memory": ("fill", {"places": ["/dev/shm"], "most_bytes": 4 * MEMORY_BYTES}),
    "51 page cache": ("thrash", {"seconds": 5, "mark": "siblings"}),
    "52 disk fill": ("fill", {"places": ["/tmp"], "most_bytes": 64 << 20}),
    "53 inode fill": ("fill-inodes", {"place": "/tmp", "most": 50_000}),
    "54 deep tree": ("deep-tree", {"depth": 20_000}),
    "55 descriptors": ("open-many", {"most": 1 << 20}),
    "56 socket buffers": ("fill-pipes", {"most_bytes": 4 * MEMORY_BYTES}),
    "57 endless output": ("flood", {"size": 1 << 30, "chunk": 1 << 16}),
    "60 spinning": ("spin", {"processes": 64, "seconds": 5}),
    "61 sync storm": ("sync-storm", {"seconds": 5}),
    "62 missing names": ("missing-names", {"count": 1_000_000}),
    "63 event queues": ("watches", {"most": 20_000}),
    "64 namespaces": ("namespaces", {"most": 2000}),
    "65 tiny writes": ("flood", {"size": 1_000_000, "chunk": 1}),
    "66 zombies": ("zombies", {"most": 2000}),
}


async def _latencies(box: dutyfree.Sandbox, seconds: float) -> list[int]:
    end = time.monotonic() + seconds
    found = []
    while time.monotonic() < end:
        found.append((await box.run(["true"], timeout_s=60)).total_ns)
    return found


async def _bombard(culprit: Stage, name: str, arguments: dict[str, Any]) -> None:
    """Again and again, until cancelled; one that kills its own command is what bombs do."""
    while True:
        with suppress(dutyfree.SandboxLost):
            await culprit.attempt(name, timeout_s=60, **arguments)


async def _beside(substrate: dutyfree.Substrate, sibling: dutyfree.Sandbox, bomb: str, seconds: float) -> list[int]:
    name, arguments = BOMBS[bomb]
    async with stage(substrate, memory_bytes=MEMORY_BYTES, pids=256) as culprit:
        task = asyncio.ensure_future(_bombard(culprit, name, arguments))
        try:
            return await _latencies(sibling, seconds)
        finally:
            task.cancel()
            await asyncio.wait([task])


def p99(samples: list[int]) -> float:
    """In milliseconds."""
    return statistics.quantiles(samples, n=100)[98] / 1e6


async def _main(name: str, seconds: float) -> list[str]:
    over = []
    async with dutyfree.connect(name) as substrate, substrate.create() as sibling:
        await _latencies(sibling, 1)
        for bomb in BOMBS:
            calm = await _latencies(sibling, seconds / 2)
            under = await _beside(substrate, sibling, bomb, seconds)
            calm += await _latencies(sibling, seconds / 2)
            ratio = p99(under) / p99(calm)
            print(
                f"{bomb:20} calm p99 {p99(calm):7.2f} ms   beside it {p99(under):7.2f} ms   {ratio:5.2f} x", flush=True
            )
            if ratio > BOUND:
                over.append(f"{bomb}: {ratio:.2f} x")
    return over


def main() -> None:
    """A line per bomb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-s", "--substrate", default="native")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    over = asyncio.run(_main(args.substrate, args.seconds))
    print(f"over {BOUND:g} x: {', '.join(over)}" if over else f"none over {BOUND:g} x")
    sys.exit(bool(over))


if __name__ == "__main__":
    main()
