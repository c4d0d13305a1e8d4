"""Short runs of what `make soak` and `make chaos` do at length, and proof that their accounting can fail."""

import asyncio
import gc
import os
import tempfile
import weakref

import dutyfree
from benchmarks.accounting import Account, slope
from benchmarks.chaos import chaos, kill_owners
from benchmarks.soak import faults_of, soak


def silent(line):
    pass


def test_a_few_hundred_cycles_leave_nothing():
    assert soak("native", 300, 4, silent) == []


def test_a_sandbox_that_has_ended_is_freed_with_its_last_reference():
    """A collector that comes late would make memory a saw, in which no leak can be seen."""

    async def one(substrate):
        async with substrate.create() as box:
            await box.run(["true"])
            await box.write("/tmp/file", b"x")
            shell = await box.shell()
            await shell.run("true")
            return weakref.ref(box), weakref.ref(box.link), weakref.ref(box.link._transport)

    async def main():
        async with dutyfree.connect("native") as substrate:
            gc.disable()
            try:
                refs = await one(substrate)
                await asyncio.sleep(0)
                assert [ref() for ref in refs] == [None] * 3
            finally:
                gc.enable()

    asyncio.run(main())


def test_a_round_of_load_and_faults_leaves_nothing():
    assert chaos(0.05, 7, silent) == []


def test_killed_owners_leave_nothing():
    assert kill_owners(5, 7, silent) == []


def account(**other):
    values = {"kernel": {"mounts": 10}, "descriptors": 20, "rss_bytes": 1 << 20, "disk_bytes": 1 << 30, "inodes": 1000}
    return Account(**{**values, **other})


def test_what_grows_with_the_cycles_is_found():
    flat = [(number * 100, 1 << 20) for number in range(50)]
    growing = [(number * 100, (1 << 20) + number * 100 * 4096) for number in range(50)]
    assert faults_of(flat, account(), account(), 5000) == []
    assert faults_of(growing, account(), account(), 5000) == ["memory grows by 4096.0 bytes a cycle"]
    slow = [(number * 1000, (1 << 20) + number * 1000 * 70) for number in range(50)]
    assert faults_of(slow, account(), account(), 50_000) == ["memory grows by 70.0 bytes a cycle"]
    assert faults_of(flat, account(), account(kernel={"mounts": 310}), 300) == ["300 more mounts"]
    assert faults_of(flat, account(), account(descriptors=5020), 5000)
    assert faults_of(flat, account(), account(kernel={"mounts": 5010}), 5000) == ["5000 more mounts"]
    assert faults_of(flat, account(), account(disk_bytes=2 << 30), 5000)
    assert faults_of(flat, account(), account(inodes=6000), 5000)


def test_a_slope_is_a_slope():
    assert slope([(0, 0), (1, 2), (2, 4)]) == 2.0
    assert slope([(5, 5)]) == 0.0


def test_something_left_behind_is_found():
    folder = tempfile.mkdtemp(prefix=f"dutyfree-{os.getpid()}-")
    try:
        # The reading before the cycles has it already, so it is made between the two by hand.
        from dutyfree.testing.leaks import holdings, leaked

        before = holdings()
        os.rmdir(folder)
        assert leaked(before) == []
        os.mkdir(folder)
        assert leaked(frozenset(one for one in before if folder not in one.what))
    finally:
        os.rmdir(folder)
