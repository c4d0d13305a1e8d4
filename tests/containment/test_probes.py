"""The whole catalogue: against what promises to hold it, and against what others use, whose misses are written down.

The others take minutes each: asked for by DUTYFREE_TEST_CONTAINERS=1, and DUTYFREE_TEST_MACHINES=1 for `microvm`.
"""

import asyncio
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons import VARIABLE as CONTAINERS
from support.machines import ASKED as MACHINES

import dutyfree
from dutyfree.probe.catalogue import CATALOGUE, Probe, Verdict, judge
from dutyfree.probe.imaged import Imaged, choose_image
from dutyfree.probe.kernel_memory import WAYS
from dutyfree.substrates.registry import find

MISSES: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "misses.toml").read_text())
"""By substrate, the numbers of what is known not to be contained or cannot be tried, with the reason; each must really fail."""

GREEDY = {*WAYS, 126, 128}
"""Seconds of all processors each; where they are not held, the whole machine feels it."""

NEW = {*range(119, 135), *range(139, 144)}
TRIED = {"docker": NEW - {128, 132, 140}, "docker?profile=hardened": {119, 120, 121, 122, 123}}
"""Of the new ones, what has been run on others than native: of the rest no miss is known yet."""

PROBED = {"native": None} | {name: MACHINES if name == "microvm" else CONTAINERS for name in MISSES}
"""Substrates, and the variable that asks for them."""


FREEZER = Path("/sys/fs/cgroup/freezer/tasks")
"""Of version 1: nothing else makes what cannot be killed, which probe 70 needs."""


def cases() -> Iterator[object]:
    for name, variable in PROBED.items():
        if variable and os.environ.get(variable) != "1":
            reason = f"the catalogue on {name} takes minutes: {variable}=1 make test"
            yield pytest.param(name, CATALOGUE[0], id=name, marks=pytest.mark.skip(reason=reason))
            continue
        found = find(name)[0].probe()
        reason = f"{name}: {found.reason}; enable: {found.enable or 'nothing known'}"
        for probe in CATALOGUE:
            miss = MISSES.get(name, {}).get(str(probe.id))
            marks = [pytest.mark.skipif(not found.available, reason=reason)]
            if variable and probe.id in NEW - TRIED.get(name, set()):
                untried = (
                    f"{name}: not seen yet, so no miss is written down: dutyfree probe -s '{name}' --only {probe.id}"
                )
                marks.append(pytest.mark.skip(reason=untried))
            if probe.id == 70 and not FREEZER.exists():
                marks.append(pytest.mark.skip(reason=f"nothing unkillable can be made here: there is no {FREEZER}"))
            marks += [pytest.mark.xfail(strict=True, reason=miss)] if miss else []
            marks += [pytest.mark.slow("what takes kernel memory or whole tables")] if probe.id in GREEDY else []
            yield pytest.param(name, probe, id=f"{name}-{probe.label}", marks=marks)


async def judge_on(name: str, probe: Probe) -> Verdict:
    async with dutyfree.connect(name) as connected:
        return await judge(probe, Imaged(connected, await choose_image(connected)))


@pytest.mark.parametrize(("name", "probe"), list(cases()))
def test_probe(name, probe):
    verdict = asyncio.run(judge_on(name, probe))
    assert verdict.contained is True, verdict.reason


def test_no_probe_was_dropped():
    assert {probe.id for probe in CATALOGUE} >= set(range(1, 111))


def test_numbers_and_names_are_unique_and_in_order():
    numbers = [probe.id for probe in CATALOGUE]
    assert numbers == sorted(set(numbers))
    assert len({probe.name for probe in CATALOGUE}) == len(CATALOGUE)
    assert numbers[0] == 1
