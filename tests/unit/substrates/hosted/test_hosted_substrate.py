"""Nothing is left at a vendor's: not after an end, a cancellation, a failure or a death."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
from paper_vendor import Paper, paper

from dutyfree.core.errors import DriverError, Misuse, SandboxLost, Unavailable, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.driver.owner import OWNER_LABEL, owner_mark
from dutyfree.testing.base import until
from dutyfree.testing.lifecycle import is_lost

OWNER = "from dutyfree.driver.owner import owner_mark; print(owner_mark())"


def played(test: Callable[[Paper], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        await test(Paper())

    def run() -> None:
        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@played
async def test_a_sandbox_is_a_machine_until_its_end(vendor: Paper):
    async with paper(vendor) as substrate:
        async with substrate.create() as box:
            assert (await box.run(["true"])).ok
            assert list(vendor.machines) == ["0"]
            assert [span.name for span in box.timeline.spans] == ["create", "ready"]
        assert vendor.machines == {}
    assert vendor.closed


@played
async def test_closing_ends_what_is_left(vendor: Paper):
    async with paper(vendor) as substrate:
        boxes = [await substrate.create() for _ in range(3)]
        await boxes[0].destroy()
        await substrate.close()
    assert vendor.machines == {}
    with pytest.raises(SandboxLost):
        await boxes[1].run(["true"])
    with pytest.raises(Misuse, match="closed"):
        await substrate.create()


@played
async def test_a_machine_whose_start_was_cancelled_is_ended_once_it_is_there(vendor: Paper):
    async with paper(vendor) as substrate:
        vendor.may_start.clear()
        task = asyncio.ensure_future(_created(substrate))
        await vendor.starting.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        vendor.may_start.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list(vendor.marks) == ["0"]
        assert vendor.machines == {}


@played
async def test_a_machine_that_comes_after_the_closing_is_ended(vendor: Paper):
    async with paper(vendor) as substrate:
        vendor.may_start.clear()
        task = asyncio.ensure_future(_created(substrate))
        await vendor.starting.wait()
        await substrate.close()
        vendor.may_start.set()
        with pytest.raises(Misuse, match="closed meanwhile"):
            await task
    assert list(vendor.marks) == ["0"]
    assert vendor.machines == {}


@played
async def test_closing_tries_every_machine_and_tells_the_vendors_first_refusal(vendor: Paper):
    async with paper(vendor) as substrate:
        for _ in range(3):
            await substrate.create()
        vendor.refuses = {"1"}
        with pytest.raises(Unavailable, match="not now"):
            await substrate.close()
    assert list(vendor.machines) == ["1"]
    assert vendor.closed


@played
async def test_a_start_that_fails_after_it_was_cancelled_is_still_a_cancellation(vendor: Paper):
    async with paper(vendor) as substrate:
        vendor.may_start.clear()
        vendor.fails = lambda: DriverError("no")
        task = asyncio.ensure_future(_created(substrate))
        await vendor.starting.wait()
        task.cancel()
        vendor.may_start.set()
        with pytest.raises(asyncio.CancelledError):
            await task


@played
async def test_every_machine_is_given_a_time_to_live_and_its_owners_mark(vendor: Paper):
    async with paper(vendor, ttl_s=60) as substrate:
        async with substrate.create() as box:
            assert vendor.marks["0"] == {OWNER_LABEL: owner_mark(), "dutyfree.name": box.id}
        async with substrate.create(Spec(lifetime_s=5)):
            pass
    assert vendor.ttls == [60, 5]


@played
async def test_the_clock_is_set_again_while_the_owner_lives(vendor: Paper):
    async with paper(vendor, ttl_s=0.03) as substrate, substrate.create():
        machine = vendor.machines["0"]
        for fails in (None, Unavailable("for now"), None):
            machine.fails = fails
            machine.extended.clear()
            await machine.extended.wait()
    assert machine.extensions[:3] == [0.03] * 3


@played
async def test_the_clock_is_never_set_beyond_the_lifetime(vendor: Paper):
    async with paper(vendor, ttl_s=0.3) as substrate, substrate.create(Spec(lifetime_s=60)):
        machine = vendor.machines["0"]
        await machine.extended.wait()
        assert machine.extensions == [0.3]
    async with paper(vendor, ttl_s=60) as substrate, substrate.create(Spec(lifetime_s=0.5)):
        assert vendor.ttls[-1] == 0.5


@played
async def test_a_machine_that_the_vendor_ended_is_a_lost_sandbox(vendor: Paper):
    async with paper(vendor, ttl_s=0.03) as substrate, substrate.create() as box:
        vendor.machines["0"].fails = SandboxLost("the vendor ended it")
        await vendor.machines["0"].extended.wait()
        await until(lambda: is_lost(box))
        with pytest.raises(SandboxLost, match="the vendor ended it"):
            await box.run(["true"])


@played
async def test_machines_of_dead_owners_are_swept_and_those_of_live_ones_not(vendor: Paper):
    for mark in (dead_owner(), owner_mark(), "another machine's", ""):
        await vendor.start(Spec(), {OWNER_LABEL: mark}, 60)
    async with paper(vendor) as substrate:
        assert await substrate.sweep() == ["0"]
    assert list(vendor.machines) == ["1", "2", "3"]


@played
async def test_what_is_not_offered_is_refused_before_the_vendor_is_asked(vendor: Paper):
    async with paper(vendor) as substrate:
        with pytest.raises(Unsupported, match="limits"):
            await substrate.create(Spec(limits=Limits(pids=10)))
    assert vendor.marks == {}


def dead_owner() -> str:
    return subprocess.run([sys.executable, "-c", OWNER], capture_output=True, check=True, text=True).stdout.strip()


async def _created(substrate):
    return await substrate.create()
