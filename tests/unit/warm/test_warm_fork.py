"""Forks of what a pool has leased: they are leases too, and count in its bounds and numbers."""

import asyncio
import os

import pytest

import dutyfree
from dutyfree import Check, Commands, SandboxLost, Saturated, Spec
from dutyfree.warm import Settings, open_pool

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="snapshots of native need root: sudo make test")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))


def with_pool(work, **settings):
    async def main():
        async with open_pool("native", settings=Settings(**settings)) as pool:
            return await work(pool)

    return asyncio.run(main())


def states(pool):
    """What snapshots the substrate beneath still keeps in memory."""
    return len(pool.substrate._states._states)


def test_a_fork_is_a_lease_of_the_same_owner_and_is_counted():
    async def work(pool):
        box = await pool.claim(Spec(), owner="trainer")
        async with (await box.fork(1))[0] as one:
            assert (one.origin, one.owner) == ("forked", "trainer")
            assert one in pool.leases()
            found = pool.metrics()
            assert (found.claims, found.forks, found.leased, found.coming) == (1, 1, 2, 0)
            assert one.timeline.total_ns("create") > 0
        assert pool.metrics().leased == 1

    with_pool(work, demand=False)


def test_a_fork_waits_for_a_place_and_is_turned_away_without_one():
    async def work(pool):
        box = await pool.create(Spec())
        first, second, third = await box.fork(3)
        one = await first
        with pytest.raises(Saturated) as raised:
            await second
        assert raised.value.driver == "warm:native"
        assert pool.metrics().saturated == 1
        await one.destroy()
        await (await third).destroy()
        assert states(pool) == 0  # nothing is kept for the one that was turned away

    with_pool(work, demand=False, sandboxes=2, wait_s=0.05)


def test_a_fork_that_is_waited_for_comes_when_there_is_a_place():
    async def work(pool):
        box = await pool.create(Spec())
        (pending,) = await box.fork(1)
        task = asyncio.ensure_future(taken(pending))
        await queued(pool)
        await box.destroy()
        assert (await (await task).run("true")).ok

    with_pool(work, demand=False, sandboxes=1)


async def queued(pool):
    async with asyncio.timeout(20):
        while pool.metrics().queued == 0:  # noqa: ASYNC110 - a pool tells its numbers only when asked
            await asyncio.sleep(0)


async def taken(pending):
    return await pending


def test_a_fork_that_is_cancelled_while_it_waits_leaves_nothing():
    async def work(pool):
        box = await pool.create(Spec())
        task = asyncio.ensure_future(taken((await box.fork(1))[0]))
        await queued(pool)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert states(pool) == 0
        assert pool.metrics().queued == 0
        await box.destroy()

    with_pool(work, demand=False, sandboxes=1)


def test_a_fork_lasts_as_long_as_its_claim_said():
    async def work(pool):
        box = await pool.claim(Spec(), ttl_s=30)
        one = await (await box.fork(1))[0]
        one.renew(0.05)
        with pytest.raises(SandboxLost, match="lease"):
            await one.run(["sleep", "60"])
        assert pool.metrics().expired == 1
        assert box.alive

    with_pool(work, demand=False)


def test_a_fork_is_never_put_into_the_stock():
    async def work(pool):
        for _ in range(4):
            async with pool.create(Spec()) as box, (await box.fork(1))[0] as one:
                await one.write("/root/marker", b"")
        await pool.settled()
        async with pool.create(Spec()) as box:
            assert not (await box.run(["test", "-e", "/root/marker"])).ok

    with_pool(work)


def test_judging_a_fork_does_not_stock_its_state():
    async def work(pool):
        async with pool.create(Spec(stages=(Commands(commands=["mkdir -p /repo && echo 1 >/repo/a"]),))) as box:
            (pending,) = await box.fork(1)
            async with pending as one:
                await one.write("/repo/b", b"2")
                checks = [Check(command="test $(cat /repo/a) = 1 -a $(cat /repo/b) = 2")]
                for _ in range(3):
                    found = await dutyfree.verify(pool, one.spec, one, allow=["/repo/**"], checks=checks)
                    assert found.passed
                await pool.settled()
                shelves = [shelf for shelf in pool._stock.shelves.values() if shelf.plan.spec.image == one.spec.image]
                assert [(shelf.demand.wanted(0, 1), shelf.idle, shelf.coming) for shelf in shelves] == [(0, [], 0)]
        assert not pool._forked

    with_pool(work)


def test_closing_the_pool_ends_forks():
    async def main():
        async with open_pool("native") as pool:
            box = await pool.create(Spec())
            one = await (await box.fork(1))[0]
        assert not one.alive
        with pytest.raises(SandboxLost):
            await one.run("true")
        await one.destroy()

    asyncio.run(main())
