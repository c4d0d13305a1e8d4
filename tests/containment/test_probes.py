"""The whole catalogue, against every substrate that promises to hold it."""

import asyncio
from collections.abc import Iterator

import pytest

import dutyfree
from dutyfree.probe.catalogue import CATALOGUE, Probe, Verdict, judge
from dutyfree.substrates.registry import find

MISSES: dict[tuple[str, int], str] = {}
"""Substrate and number of what is known not to be contained, with the reason; each must really fail."""

PROMISED = {1, 2, 4, 8, 9, 14, 15, 18, 23, 28, 34, 47, 49, 52, 57, 67, 82, 83, 88, 98}


PROBED = ("native",)
"""Substrates that promise to hold the catalogue; one that joins brings its rows of `MISSES`."""


def cases() -> Iterator[object]:
    for name in PROBED:
        found = find(name)[0].probe()
        reason = f"{name}: {found.reason}; enable: {found.enable or 'nothing known'}"
        for probe in CATALOGUE:
            miss = MISSES.get((name, probe.id))
            marks = [pytest.mark.skipif(not found.available, reason=reason)]
            marks += [pytest.mark.xfail(strict=True, reason=miss)] if miss else []
            yield pytest.param(name, probe, id=f"{name}-{probe.label}", marks=marks)


async def judge_on(name: str, probe: Probe) -> Verdict:
    async with dutyfree.connect(name) as substrate:
        return await judge(probe, substrate)


@pytest.mark.parametrize(("name", "probe"), list(cases()))
def test_probe(name, probe):
    verdict = asyncio.run(judge_on(name, probe))
    assert verdict.contained is True, verdict.reason


def test_what_was_promised_first_is_in_the_catalogue():
    assert {probe.id for probe in CATALOGUE} >= PROMISED


def test_the_catalogue_is_whole():
    assert {probe.id for probe in CATALOGUE} == set(range(1, 111))


def test_numbers_and_names_are_unique_and_in_order():
    numbers = [probe.id for probe in CATALOGUE]
    assert numbers == sorted(set(numbers))
    assert len({probe.name for probe in CATALOGUE}) == len(CATALOGUE)
    assert all(1 <= number <= 110 for number in numbers)
