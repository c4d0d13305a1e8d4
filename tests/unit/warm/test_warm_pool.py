"""The pool on real substrates: what is ready, who gets it, who waits, and what becomes of it."""

import asyncio
import os

import pytest

import dutyfree
from dutyfree import Commands, Limits, Misuse, SandboxLost, Saturated, Spec
from dutyfree.warm import Settings, open_pool
from dutyfree.warm.settings import parse

PLAIN = Spec()
QUIET = Settings(demand=False)
DEEP = Spec(stages=(Commands(commands=["echo one > one"]), Commands(commands=["cat one > two"])))


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="snapshots of native need root: sudo make test")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))


def with_pool(work, *, targets=(), settings=QUIET):
    async def main():
        async with open_pool("native", targets=targets, settings=settings) as pool:
            await pool.settled()
            return await work(pool)

    return asyncio.run(main())


async def awaited(pending):
    return await pending


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a pool tells its numbers only when asked
            await asyncio.sleep(0.005)


def test_what_waits_is_handed_out_and_made_again():
    async def work(pool):
        assert pool.metrics().idle == 3
        boxes = [await pool.create(PLAIN) for _ in range(3)]
        assert {box.origin for box in boxes} == {"idle"}
        await pool.settled()
        assert (pool.metrics().hits, pool.metrics().misses, pool.metrics().idle) == (3, 0, 3)

    with_pool(work, targets=[(PLAIN, 3)])


def test_several_states_wait_at_once():
    async def work(pool):
        first, deep = await pool.create(PLAIN), await pool.create(DEEP)
        assert (first.origin, deep.origin) == ("idle", "idle")
        assert (await deep.run("cat two")).stdout == b"one\n"
        assert not (await first.run("cat two")).ok

    with_pool(work, targets=[(PLAIN, 1), (DEEP, 1)])


def test_environment_and_directory_belong_to_the_claim_and_not_to_what_waited():
    async def work(pool):
        spec = Spec(env={"A": "1", "B": "2"}, cwd="/srv", network="none")
        box = await pool.create(spec)
        assert box.origin == "idle"
        assert box.spec == spec
        assert (await box.run("echo $A$B; pwd", env={"B": "3"})).text() == "13\n/srv\n"
        async with await box.shell() as shell:
            assert (await shell.run("echo $A$B; pwd")).text() == "12\n/srv\n"

    with_pool(work, targets=[(PLAIN, 1)])


def test_demand_alone_keeps_one_ready():
    async def work(pool):
        async with pool.create(PLAIN) as box:
            assert box.origin == "created"
        await until(lambda: pool.metrics().idle >= 1)
        async with pool.create(PLAIN) as box:
            assert box.origin == "idle"

    with_pool(work, settings=Settings())


def test_a_sandbox_that_died_while_it_waited_is_not_handed_out():
    async def work(pool):
        (shelf,) = pool._stock.shelves.values()
        await shelf.idle[-1].box.destroy()
        box = await pool.create(PLAIN)
        assert (await box.run("true")).ok
        assert pool.metrics().unhealthy == 1

    with_pool(work, targets=[(PLAIN, 2)])


def test_a_sandbox_in_an_earlier_state_is_completed_when_that_is_quicker():
    async def work(pool):
        async with pool.create(DEEP) as box:  # built now, so the stages' cost is known
            assert box.origin == "created"
        for _ in range(60):
            pool.costs.seen("create", 60.0)
        box = await pool.create(DEEP)
        assert box.origin == "near"
        assert (await box.run("cat two")).stdout == b"one\n"
        assert pool.metrics().near == 1

    with_pool(work, targets=[(PLAIN, 2)])


def test_a_new_sandbox_is_made_when_that_is_quicker():
    async def work(pool):
        slow = Spec(stages=(Commands(commands=["sleep 0.5"]),))
        for _ in range(2):
            async with pool.create(slow) as box:
                assert box.origin == "created"

    with_pool(work, targets=[(PLAIN, 2)])


def test_a_lease_ends_by_its_time_unless_it_is_renewed():
    async def work(pool):
        lease = await pool.claim(PLAIN, ttl_s=0.3)
        lease.renew(60.0)
        lease.renew(0.05)
        with pytest.raises(SandboxLost, match=r"lease of 0\.05 s was over"):
            await lease.run(["sleep", "60"])
        with pytest.raises(SandboxLost, match="lease of"):
            await lease.run("true")
        assert pool.leases() == ()

    with_pool(work)


def test_asking_again_with_the_same_key_gives_the_same_lease():
    async def work(pool):
        both = await asyncio.gather(*(pool.claim(PLAIN, owner="a", key="rollout-1") for _ in range(2)))
        again = await pool.claim(PLAIN, owner="a", key="rollout-1")
        assert both[0] is both[1] is again
        assert len(pool.leases()) == 1
        with pytest.raises(Misuse, match="another owner"):
            await pool.claim(PLAIN, owner="b", key="rollout-1")
        await again.destroy()
        fresh = await pool.claim(PLAIN, owner="a", key="rollout-1")
        assert fresh is not again
        assert fresh.alive

    with_pool(work)


def test_a_full_pool_says_when_to_come_again():
    async def work(pool):
        box = await pool.create(PLAIN)
        for wait_s in (0.0, 0.05):
            with pytest.raises(Saturated) as caught:
                await pool.claim(PLAIN, wait_s=wait_s)
            assert caught.value.retry_after_s > 0
        assert pool.metrics().saturated == 2
        await box.destroy()
        assert (await pool.claim(PLAIN, wait_s=0.0)).alive

    with_pool(work, settings=Settings(demand=False, sandboxes=1))


def test_who_waits_is_served_by_priority_and_owners_in_turn():
    async def work(pool):
        first = await pool.create(PLAIN)
        served = []

        async def rollout(name, owner, priority):
            async with pool.claim(PLAIN, owner=owner, priority=priority):
                served.append(name)

        tasks = []
        for name, owner, priority in (("a1", "a", 0), ("a2", "a", 0), ("b1", "b", 0), ("high", "c", 9)):
            tasks.append(asyncio.ensure_future(rollout(name, owner, priority)))
            await until(lambda: pool.metrics().queued == len(tasks))
        await first.destroy()
        await asyncio.gather(*tasks)
        assert served == ["high", "a1", "b1", "a2"]

    with_pool(work, settings=Settings(demand=False, sandboxes=1))


def test_a_waiter_that_is_cancelled_leaves_its_room_to_others():
    async def work(pool):
        first = await pool.create(PLAIN)
        waiter = asyncio.ensure_future(awaited(pool.create(PLAIN)))
        await until(lambda: pool.metrics().queued == 1)
        waiter.cancel()
        await asyncio.wait([waiter])
        assert pool.metrics().queued == 0
        await first.destroy()
        assert (await pool.create(PLAIN)).alive

    with_pool(work, settings=Settings(demand=False, sandboxes=1))


def test_memory_is_a_budget_too():
    async def work(pool):
        await pool.create(PLAIN)
        with pytest.raises(Saturated):
            await pool.claim(PLAIN, wait_s=0.0)

    with_pool(work, settings=Settings(demand=False, memory_bytes=300 << 20))


def test_what_waits_for_others_makes_room_for_who_is_here():
    async def work(pool):
        box = await pool.create(DEEP)
        assert box.alive
        assert pool.metrics().wasted >= 1

    with_pool(work, targets=[(PLAIN, 2)], settings=Settings(demand=False, sandboxes=2))


def test_a_target_beyond_the_budget_is_met_as_far_as_it_goes():
    async def work(pool):
        assert pool.metrics().idle == 2

    with_pool(work, targets=[(PLAIN, 5)], settings=Settings(demand=False, sandboxes=2))


def test_a_stage_that_fails_does_not_stop_the_others():
    async def work(pool):
        assert pool.metrics().build_failures == 1
        assert pool.metrics().refill_failures in (1, 2)  # one build, for whoever had asked by then
        assert (await pool.create(PLAIN)).origin == "idle"

    broken = Spec(stages=(Commands(commands=["exit 1"]),))
    with_pool(work, targets=[(broken, 2), (PLAIN, 1)])


def test_closing_ends_what_waits_and_what_is_leased():
    async def main():
        pool = await open_pool("native", targets=[(PLAIN, 2)], settings=QUIET)
        box = await pool.create(PLAIN)
        await pool.close()
        await pool.close()
        with pytest.raises(SandboxLost):
            await box.run("true")
        with pytest.raises(Misuse, match="closed"):
            await pool.create(PLAIN)

    asyncio.run(main())


def test_a_wish_that_cannot_be_met_is_told_at_once():
    async def main():
        with pytest.raises(Misuse, match="image"):
            await open_pool("native", targets=[(Spec(image="nothing"), 1)])

    asyncio.run(main())


def test_text_options_reach_the_pool(tmp_path):
    (tmp_path / "start.toml").write_text('[[stage]]\ncommands = ["echo there > file"]\n')

    async def main():
        options = {"stages": str(tmp_path / "start.toml"), "target": "2", "demand": "no", "memory": "8G"}
        async with dutyfree.connect("warm:native", **options) as pool:
            await pool.settled()
            assert pool.metrics().idle == 2
        with pytest.raises(Misuse, match="colour: is not an option"):
            await dutyfree.connect("warm:native", colour="red")

    asyncio.run(main())
    assert parse({"memory": "8G"}).settings.memory_bytes == 8 << 30
    for name, text in (
        ("sandboxes", "many"),
        ("wait_s", "long"),
        ("demand", "maybe"),
        ("memory", "8X"),
        ("refill", "0"),
    ):
        with pytest.raises(Misuse, match=name):
            parse({name: text})


def test_a_reset_of_one_that_was_completed_runs_the_missing_stages_again():
    async def work(pool):
        if not pool.capabilities.reset:
            pytest.skip(f"reset: {pool.capabilities.notes.get('reset')}")
        spec = Spec(stages=(Commands(commands=["echo one > one"]),))
        async with pool.create(spec):
            pass
        for _ in range(60):
            pool.costs.seen("create", 60.0)
        box = await pool.create(spec)
        assert box.origin == "near"
        await box.run("echo two > one; touch mine")
        await box.reset()
        assert (await box.run("cat one; ls mine")).stdout == b"one\n"

    with_pool(work, targets=[(Spec(), 1)])


def test_another_limit_is_another_kind():
    async def work(pool):
        assert (await pool.create(Spec())).origin == "idle"
        assert (await pool.create(Spec(limits=Limits(pids=50)))).origin == "created"

    with_pool(work, targets=[(Spec(), 1)])


def test_a_sandbox_that_comes_back_by_a_reset_is_clean_and_out_of_reach_of_who_had_it():
    async def work(pool):
        if not pool.capabilities.reset:
            pytest.skip(f"reset: {pool.capabilities.notes.get('reset')}")
        for _ in range(40):
            pool.costs.seen("create", 60.0)  # a machine where another one would take a minute
        first = await pool.create(Spec())
        await first.run("echo secret > /tmp/mark; sleep 1000 &", background=True)
        await pool.set_targets([(Spec(), 10)])
        await first.destroy()
        assert pool.metrics().resets == 1
        second = await pool.create(Spec())
        while second.uses == 1:
            second = await pool.create(Spec())
        assert second.id == f"{first.id}.1"
        assert not (await second.run("cat /tmp/mark || pgrep sleep")).ok
        with pytest.raises(SandboxLost):
            await first.read("/tmp/mark")

    with_pool(work)
