"""What is special to virtual machines: copies differ where they must and go on where they should, nothing outlives its owner, and
our own native substrate on cgroup v2, which only a machine of its own kernel can show here."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from doomed import client, ends, kill, until

from dutyfree.core.errors import Misuse, Unavailable, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.image.store import Store
from dutyfree.substrates.registry import connect

pytestmark = [pytest.mark.slow("virtual machines"), pytest.mark.usefixtures("machines"), pytest.mark.timeout(900)]

BENCH = Spec(image="bench")
COUNTING = "(i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.1; done) >/dev/null 2>&1 &"
SIGNS = "cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1; hostname; date +%s"


def places():
    """What machines leave below the store, by name."""
    root = Store.default().root / "machines"
    return {
        path for place in ("templates", "writes", "keys", "disks", "snapshots") for path in (root / place).glob("*")
    } | {path for place in ("templates", "writes", "keys", "disks") for path in (root / place).glob(".*")}


def qemus(parent):
    """Processes whose parent was that one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdecimal() else ""
        except OSError:
            continue
        if stat and "qemu-system" in stat and stat[stat.rindex(")") + 2 :].split()[1] == str(parent):
            found.append(int(entry.name))
    return found


def test_the_accelerator_is_named_wherever_results_are():
    async def main():
        async with connect("microvm") as micro, connect("vm", accel="tcg") as whole:
            assert "accel=" in micro.version
            assert "accel=tcg" in whole.version
            assert whole.capabilities.isolation == "kernel"

    asyncio.run(main())


def test_options_that_make_no_sense_are_misuse():
    async def main():
        for name, options in (
            ("vm", {"accel": "fast"}),
            ("microvm", {"stock": "many"}),
            ("microvm", {"dispatch": "api"}),
        ):
            with pytest.raises(Misuse):
                await connect(name, **options)

    asyncio.run(main())


def test_two_clones_of_a_template_share_neither_randomness_nor_name_and_know_the_time():
    async def main():
        async with connect("microvm", accel="tcg", stock="1") as substrate:
            async with substrate.create(BENCH) as one, substrate.create(BENCH) as other:
                seen = [(await box.run(SIGNS)).text().splitlines() for box in (one, other)]
            for line in range(3):
                assert seen[0][line] != seen[1][line]
            for signs in seen:
                assert abs(int(signs[3]) - time.time()) < 60

    asyncio.run(main())


def test_processes_go_on_in_the_copies_of_a_running_sandbox_and_in_the_original():
    async def main():
        async with connect("microvm", accel="tcg", stock="0") as substrate, substrate.create(BENCH) as box:
            before = places()
            await box.write("/root/mine", b"before the fork")
            await box.run(COUNTING, background=True)
            await until_counts(box)
            first, second = await box.fork(2)
            async with first as one, second as other:
                seen = [(await each.run(SIGNS)).text().splitlines() for each in (box, one, other)]
                for each in (box, one, other):
                    assert await each.read("/root/mine") == b"before the fork"
                    await until_counts(each)
                assert len({signs[1] for signs in seen}) == 3
                assert all(abs(int(signs[3]) - time.time()) < 60 for signs in seen)
                await one.write("/root/mine", b"the copy's")
                assert await box.read("/root/mine") == b"before the fork"
                assert await other.read("/root/mine") == b"before the fork"
                with pytest.raises(Misuse, match="n"):
                    await box.fork(0)
            assert places() == before

    asyncio.run(main())


async def until_counts(box):
    """The process that counts is alive: its number grows."""
    script = 'a=$(cat /tmp/count 2>/dev/null); until [ -n "$a" ] && [ "$(cat /tmp/count)" -gt "$a" ]; do sleep 0.05; a=${a:-$(cat /tmp/count 2>/dev/null)}; done 2>/dev/null'
    assert (await box.run(script, timeout_s=120)).ok


def test_a_snapshot_with_a_name_outlives_its_substrate_until_it_is_removed():
    async def main():
        async with connect("microvm", accel="tcg", stock="0") as substrate, substrate.create(BENCH) as box:
            await box.write("/root/saved", b"kept")
            snapshot = await box.snapshot("contract-machines")
            assert (await box.snapshot("contract-machines")).image == snapshot.image
        async with connect("microvm", accel="tcg", stock="0") as substrate:
            assert await substrate.holds(snapshot.image)
            async with substrate.create(Spec(image=snapshot.image)) as box:
                assert await box.read("/root/saved") == b"kept"
                again = await box.snapshot("contract-machines")
            with pytest.raises(Unsupported):
                await substrate.create(Spec(image=snapshot.image, limits=Limits(pids=64)))
            await again.remove()
            await again.remove()
            assert not await substrate.holds(snapshot.image)
            with pytest.raises(Misuse, match="image"):
                await substrate.create(Spec(image=snapshot.image))

    asyncio.run(main())


@pytest.mark.parametrize("name", ["microvm?accel=tcg", "vm?accel=tcg", "vm?accel=tcg&dispatch=api"])
def test_kill_9_of_the_client_leaves_no_machine_and_the_next_client_sweeps(name):
    needs(name)
    with client(name, "86403.1") as (process, box):
        assert box
        pids = qemus(process.pid)
        assert pids
        kill(process)
        assert all(ends(pid) for pid in pids)

    async def visit():
        async with connect(name):
            pass

    asyncio.run(visit())
    until(lambda: not any(f".{process.pid}." in path.name for path in places()))
    assert not any("dutyfree-" in path.name for path in Path("/dev/shm").iterdir() if box in path.name)


def needs(name):
    async def visit():
        async with connect(name):
            pass

    try:
        asyncio.run(visit())
    except Unavailable as error:
        pytest.skip(str(error))


def test_writes_of_a_machine_can_go_to_a_disk_of_its_own():
    async def main():
        async with connect("vm", accel="tcg") as substrate:
            async with substrate.create(Spec(image="bench", storage="disk")) as box:
                out = await box.run(
                    "head -c 10000000 /dev/zero >/root/big && stat -c %s /root/big; df --output=size / | tail -1"
                )
                size, disk = out.stdout.split()
                assert size == b"10000000"
                assert int(disk) > 3 << 20
            with pytest.raises(Unsupported):
                await substrate.create(Spec(image="bench", storage="disk", limits=Limits(disk_bytes=1 << 20)))

    before = places()
    asyncio.run(main())
    assert places() == before


NATIVE = """
import asyncio, json, dutyfree

FORK = '''import os, signal
n = 0
try:
    while n < 40:
        if os.fork() == 0: signal.pause()
        n += 1
except BlockingIOError: pass
print(n, flush=True)'''

async def main():
    seen = {}
    async with dutyfree.connect("native") as substrate:
        seen["version"] = substrate.version
        seen["limits"] = sorted(substrate.capabilities.limits)
        limits = dutyfree.Limits(memory_bytes=64 << 20, pids=16, cpus=0.2)
        async with substrate.create(dutyfree.Spec(image="/mnt", limits=limits)) as box:
            seen["memory"] = (await box.run(["python3", "-c", "x = b'x' * (256 << 20)"], timeout_s=100)).ending
            seen["pids"] = int((await box.run(["python3", "-c", FORK], timeout_s=100)).stdout)
            spin = await box.run("while :; do :; done", timeout_s=4)
            seen["cpu"] = [spin.ending, spin.cpu_ns / spin.run_ns]
    print(json.dumps(seen))

asyncio.run(main())
"""


def test_our_native_substrate_enforces_its_limits_on_cgroup_v2(tmp_path):
    """In a machine whose kernel has no version 1 at all: the package as it is, run by the image's own Python."""
    package = Path(__file__).parents[2] / "src/dutyfree"

    async def main():
        async with connect("vm", accel="tcg", kernel="cgroup_no_v1=all") as substrate, substrate.create(BENCH) as box:
            assert (await box.run("stat -fc %T /sys/fs/cgroup")).stdout == b"cgroup2fs\n"
            assert b"memory" in await box.read("/sys/fs/cgroup/cgroup.controllers")
            # Kernel 6.1 shifts owners on ext4, but not on the overlay that is the machine's root: the image's disk itself serves.
            assert (await box.run("mount -o ro /dev/vda /mnt")).ok
            await box.upload(package, "/opt/src/dutyfree")
            # What an installation would have: the entry points by which drivers are found.
            points = "[dutyfree.substrates]\nnative = dutyfree.substrates.native:driver\n"
            await box.write("/opt/src/dutyfree-0.dist-info/entry_points.txt", points.encode())
            await box.write(
                "/opt/src/dutyfree-0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: dutyfree\nVersion: 0\n"
            )
            await box.write("/opt/native.py", NATIVE.encode())
            out = await box.run(["python3", "/opt/native.py"], env={"PYTHONPATH": "/opt/src"}, timeout_s=600)
            assert out.ok, out.stderr.decode()
            return json.loads(out.stdout)

    seen = asyncio.run(main())
    assert {"cpus", "memory_bytes", "pids"} <= set(seen["limits"]), seen
    assert seen["memory"] == "oom"
    assert 0 < seen["pids"] <= 16
    ending, share = seen["cpu"]
    assert ending == "timeout"
    assert share < 0.5
