"""What the machine loses to sandboxes beyond their memory limits: to a crowd of them, and that the measure can fail."""

import asyncio
import fcntl
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import dutyfree
from dutyfree.probe.agent import opened_agent
from dutyfree.probe.kernel_memory import LIMIT_BYTES, MOST_BYTES, WAYS, Watch, hoarding
from dutyfree.probe.scene import stage
from dutyfree.substrates.registry import find

CROWD = 16
SLACK_BYTES = 1 << 30
DUMPABLE = Path("/proc/sys/fs/suid_dumpable")

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not find("native")[0].probe().available, reason="needs native as root: sudo make test"
)


def available():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@needs_root
@pytest.mark.slow("a crowd of sandboxes takes kernel memory")
@pytest.mark.parametrize("way", [way for _, ways in WAYS.values() for way in ways])
def test_a_crowd_costs_the_machine_at_most_so_much_for_each(way):
    if available() < CROWD * MOST_BYTES + 2 * SLACK_BYTES:
        pytest.skip(
            f"{CROWD} sandboxes that take too much need {CROWD * MOST_BYTES >> 30} GiB and some more of free memory"
        )

    async def main():
        async with dutyfree.connect("native") as substrate, Watch() as watch, AsyncExitStack() as stack:
            boxes = [await stack.enter_async_context(stage(substrate, memory_bytes=LIMIT_BYTES)) for _ in range(CROWD)]
            await asyncio.gather(*(hoarding(box, [way], CROWD * MOST_BYTES + SLACK_BYTES) for box in boxes))
        return await watch.fell(CROWD * LIMIT_BYTES)

    assert asyncio.run(main()) <= CROWD * MOST_BYTES


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have pipes as large as that: sudo make test")
def test_the_measure_sees_memory_that_only_the_kernel_holds():
    async def main():
        async with Watch() as watch:
            pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(400)]
            for _, end in pipes:
                os.write(end, bytes(fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)))
            await asyncio.sleep(0.2)
            for pair in pipes:
                for end in pair:
                    os.close(end)
        return await watch.fell(0)

    assert max(asyncio.run(main()) for _ in range(3)) > MOST_BYTES


@needs_root
@pytest.mark.slow("settings of the whole machine")
def test_a_machine_that_dumps_setuid_programs_does_not_open_the_agent():
    async def main():
        async with dutyfree.connect("native") as substrate:
            return await opened_agent(substrate)

    before = DUMPABLE.read_text()
    try:
        DUMPABLE.write_text("1")
        verdict = asyncio.run(main())
    finally:
        DUMPABLE.write_text(before)
    assert verdict.contained is True, verdict.reason
