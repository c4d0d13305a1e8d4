"""Whole campaigns over synthetic substrates, for the tests of what comes after them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from synthetic import Delays, SyntheticSubstrate, VirtualClock

from dutyfree.meter import campaign
from dutyfree.meter.campaign import Choices
from dutyfree.meter.subject import Subject
from dutyfree.meter.workloads import tier0


def measure(directory: Path, delays: dict[str, Delays], choices: Choices, *, stop_after: int | None = None) -> dict:
    """Measure synthetic substrates with these delays on T0; the substrates by name. Raises what `stop_after` cuts."""
    clock = VirtualClock()
    substrates = {name: SyntheticSubstrate(clock=clock, delays=given) for name, given in delays.items()}
    subjects = [Subject(label=name, name=name, substrate=substrate) for name, substrate in substrates.items()]
    seen = 0

    def progress(cohort, records):
        nonlocal seen
        seen += 1
        if seen == stop_after:
            raise KeyboardInterrupt

    async def go():
        prepared = await campaign.prepare(directory, subjects, [tier0.workload()], choices)
        await campaign.run(directory, prepared, choices, progress=progress, clock=clock)

    asyncio.run(go())
    return substrates
