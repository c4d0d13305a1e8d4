"""kill -9 of a pool's owner while it builds, refills and hands out: nothing is left, and nothing half is visible."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from family import cgroups_of, descendants, spawners, survivors, watch

import dutyfree
from dutyfree.warm import open_pool

OWNER = Path(__file__).with_name("warm_owner.py")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def kill_after(substrate, steps):
    owner = subprocess.Popen([sys.executable, OWNER, substrate], stdout=subprocess.PIPE, text=True)
    for _ in range(steps):
        assert owner.stdout.readline()
    spawner = spawners(owner.pid)
    family = watch(descendants(owner.pid))
    owner.kill()
    owner.stdout.close()
    owner.wait()
    return spawner, family


@pytest.mark.skipif(os.geteuid() != 0, reason="snapshots of native need root: sudo make test")
@pytest.mark.parametrize("seed", range(6))
def test_killing_a_pool_over_native_leaves_nothing_and_no_half_stage(seed, home):
    (spawner,), family = kill_after("native", random.Random(seed).randint(1, 60))
    assert survivors(family) == []
    assert cgroups_of(spawner) == []
    every_stage_is_whole_and_the_rest_is_built("native")
    assert list((home / "building").iterdir()) == []


def every_stage_is_whole_and_the_rest_is_built(substrate):
    """Whatever is held has one line in its log and one file for each stage; whatever is not can be built now."""

    async def main():
        async with open_pool(substrate) as pool:
            network = "none" if "none" in pool.capabilities.networks else "host"
            command = ["head -c 300000 /dev/zero > $RANDOM; echo $RANDOM >> log"]
            stages = ()
            for depth in range(1, 4):
                stages = (*stages, dutyfree.Commands(commands=command))
                async with pool.create(dutyfree.Spec(stages=stages, network=network)) as box:
                    assert len((await box.run("cat log")).stdout.split()) == depth
                    sizes = (await box.run("stat -c %s [0-9]*")).stdout.split()
                    assert set(sizes) == {b"300000"}
            # The store sweeps when it is built in: so something that the killed one cannot have had.
            await pool.build(dutyfree.Spec(stages=(dutyfree.Commands(commands=["touch fresh"]),), network=network))

    asyncio.run(main())
