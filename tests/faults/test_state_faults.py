"""Snapshots, forks and resets that are cancelled, killed or starved: nothing half is left, and the sandbox goes on."""

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from family import cgroups_of, comm, descendants, spawners, survivors, watch
from test_cancellation import CancelledAt, cancel_everywhere

import dutyfree
from dutyfree.image.store import Store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="snapshots need root: sudo make test")

SAVER = Path(__file__).with_name("saver.py")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A store of one's own: what is left in it is ours."""
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def left_in(home):
    """Work in progress and what was thrown away."""
    return [path for name in ("building", "trash") if (home / name).exists() for path in (home / name).iterdir()]


def snapshots():
    return [name for name in Store.default().names.all() if name.startswith("snapshot:")]


async def with_files(substrate, **fields):
    box = await substrate.create(dutyfree.Spec(**fields))
    await box.run("mkdir /srv/d && cd /srv/d && for i in $(seq 200); do head -c 20000 /dev/zero >$i; done")
    return box


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_a_snapshot_can_be_cancelled_at_every_await(storage, home):
    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await with_files(substrate, storage=storage, limits=dutyfree.Limits(disk_bytes=64 << 20))

            async def check(saved):
                if saved is not None:
                    await saved.remove()
                assert (await box.run(["echo", "still here"])).stdout == b"still here\n"
                assert substrate._states._states == {}
                assert left_in(home) == []
                assert snapshots() == []

            assert await cancel_everywhere(box.snapshot, check) > 0
            await box.destroy()

    asyncio.run(main())


def test_a_snapshot_with_a_key_that_is_cancelled_is_whole_or_absent(home):
    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await with_files(substrate)

            async def check(_):
                assert left_in(home) == []
                if snapshots():
                    async with substrate.create(dutyfree.Spec(image="snapshot:kept")) as later:
                        assert len(await later.list("/srv/d")) == 200
                    await (await box.snapshot("kept")).remove()
                assert left_in(home) == []
                assert (await box.run(["true"])).ok

            assert await cancel_everywhere(lambda: box.snapshot("kept"), check) > 0
            await box.destroy()

    asyncio.run(main())


def test_a_fork_can_be_cancelled_at_every_await():
    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await with_files(substrate)

            async def fork():
                return [await pending for pending in await box.fork(1)]

            async def check(boxes):
                for one in boxes or ():
                    assert len(await one.list("/srv/d")) == 200
                    await one.destroy()
                assert substrate._boxes == {box}
                assert len(substrate._spawner._sandboxes) == 1

            assert await cancel_everywhere(fork, check) > 0
            await box.destroy()

    asyncio.run(main())


def test_a_reset_can_be_cancelled_at_every_await_and_is_complete():
    async def main():
        async with dutyfree.connect("native") as substrate, substrate.create() as box:
            await box.reset()

            async def check(_):
                assert len(substrate._spawner._sandboxes) == 1
                if any(entry.name == "mark" for entry in await box.list("/root")):
                    return  # it had not begun
                assert (await box.run(["true"])).ok

            async def reset():
                await box.write("/root/mark", b"")
                await box.reset()

            assert await cancel_everywhere(reset, check) > 0

    asyncio.run(main())


def test_destroying_during_a_snapshot_ends_both():
    async def main():
        async with dutyfree.connect("native") as substrate:
            for n in range(6):
                box = await with_files(substrate)
                saving = asyncio.ensure_future(box.snapshot())
                for _ in range(n):
                    await asyncio.sleep(0)
                await box.destroy()
                done = (await asyncio.gather(saving, return_exceptions=True))[0]
                assert isinstance(done, dutyfree.SandboxLost) or done.image, repr(done)
            assert substrate._boxes == set()
            assert substrate._spawner._sandboxes == {}

    asyncio.run(main())


def test_killing_the_spawner_during_a_snapshot_gives_sandbox_lost_and_leaves_nothing_frozen():
    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await with_files(substrate)
            spawner = substrate._spawner._process.pid
            saving = asyncio.ensure_future(box.snapshot())
            while not any(comm(pid) == "dutyfree-copier" for pid in descendants(spawner)):
                if saving.done():
                    break
                await asyncio.sleep(0)
            family = watch(descendants(spawner))
            os.kill(spawner, signal.SIGKILL)
            done = (await asyncio.gather(saving, return_exceptions=True))[0]
            assert isinstance(done, dutyfree.SandboxLost) or done.image, repr(done)
            await box.destroy()
        assert survivors(family) == []
        async with dutyfree.connect("native"):
            pass  # sweeps what the killed one could not remove
        assert cgroups_of(spawner) == []

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(12))
def test_killing_the_owner_while_it_saves_and_resets_leaves_no_half_layer(seed, home):
    owner = subprocess.Popen([sys.executable, SAVER], stdout=subprocess.PIPE, text=True)
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 12)):
        assert owner.stdout.readline()
    # A moment within the step, by work of our own and not by the clock.
    for _ in range(chance.randint(0, 200)):
        os.sched_yield()
    (spawner,) = spawners(owner.pid)
    family = watch(descendants(owner.pid))
    owner.kill()
    owner.stdout.close()
    owner.wait()
    assert survivors(family) == []

    async def look():
        async with dutyfree.connect("native") as substrate:
            for name in snapshots():
                async with substrate.create(dutyfree.Spec(image=name)) as box:
                    assert (await box.run("cat /srv/d/* | wc -c")).stdout == b"4000000\n"
            # The next to build sweeps.
            async with substrate.create() as box:
                await (await box.snapshot(f"after-{secrets.token_hex(4)}")).remove()

    asyncio.run(look())
    assert left_in(home) == []
    assert cgroups_of(spawner) == []


def test_a_full_store_fails_a_snapshot_and_leaves_nothing(home):
    """ENOSPC: the store on a filesystem that is too small."""

    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await with_files(substrate)
            with pytest.raises(dutyfree.DutyfreeError, match="No space left"):
                await box.snapshot("too-large")
            assert (await box.run(["true"])).ok
            assert left_in(home) == []
            assert snapshots() == []
            await box.destroy()

    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "small", home], check=True)
    try:
        asyncio.run(main())
    finally:
        subprocess.run(["umount", home], check=True)


def test_a_reset_that_is_cancelled_twice_is_complete():
    async def main():
        async with dutyfree.connect("native") as substrate, substrate.create() as box:
            for n in range(4):
                await box.write("/root/mark", b"")
                step = CancelledAt(box.reset(), n)

                async def work(step=step):
                    await step

                task = asyncio.ensure_future(work())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert (await box.run(["true"])).ok

    asyncio.run(main())
