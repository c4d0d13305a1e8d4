"""Waiting for a quiet machine: bounded, recorded, and only as long as needed."""

import asyncio

from dutyfree.meter import settle
from dutyfree.meter.settle import Settler


def waits(monkeypatch, shares, times=1, limit_s=5.0):
    """Nanoseconds of each wait, how many looks it took, and the settler."""
    seen = iter(shares)
    looks = 0

    async def share():
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.001)
        return next(seen)

    async def go():
        settler = Settler(limit_s=limit_s, quiet_share=0.2)
        return [await settler.wait() for _ in range(times)], looks, settler

    monkeypatch.setattr(settle, "busy_share", share)
    return asyncio.run(go())


def test_it_ends_as_soon_as_the_machine_is_as_quiet_as_before(monkeypatch):
    took, looks, _ = waits(monkeypatch, [0.9, 0.7, 0.25, 0.9])
    assert took[0] > 0
    assert looks == 3


def test_it_ends_at_its_limit_on_a_machine_that_stays_busy(monkeypatch):
    took, _, _ = waits(monkeypatch, [0.9] * 1000, limit_s=0.02)
    assert took[0] >= 20_000_000


def test_noise_that_no_wait_ends_is_the_machines_own(monkeypatch):
    _, looks, settler = waits(monkeypatch, [0.9] * 1000, times=10, limit_s=0.002)
    assert settler.quiet_share == 0.9
    assert looks < 40


def test_without_a_limit_nothing_is_looked_at(monkeypatch):
    took, looks, _ = waits(monkeypatch, [], limit_s=0.0)
    assert (took, looks) == ([0], 0)


def test_a_share_is_of_all_processors():
    assert 0 <= asyncio.run(settle.busy_share(0.02)) <= 2
