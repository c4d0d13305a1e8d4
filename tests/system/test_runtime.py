"""What is special to bundles on a runtime program: the image stays as it was, and orphans of a killed client are swept."""

import asyncio
from pathlib import Path

import pytest
from doomed import client, ends, kill, sleepers, until

from dutyfree.core.spec import Limits, Spec
from dutyfree.image.resolve import resolve
from dutyfree.image.rootfs import fingerprint
from dutyfree.image.store import Store
from dutyfree.substrates.registry import connect, find

pytestmark = [pytest.mark.slow("container engines and runtimes"), pytest.mark.usefixtures("bench")]


@pytest.fixture(params=["runc", "gvisor"])
def runtime(request):
    found = find(request.param)[0].probe()
    if not found.available:
        pytest.skip(f"{request.param}: {found.reason}; enable: {found.enable}")
    return request.param


def bundles(name):
    return [path.name for path in Path("/run/dutyfree", name).glob("dutyfree-*")]


def sandbox_processes(name):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and name.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_kill_9_of_the_client_ends_everything_and_the_next_client_sweeps(runtime, dispatch):
    mark = f"86402.{1 if dispatch == 'api' else 2}"
    with client(f"{runtime}?dispatch={dispatch}", mark) as (process, name):
        pids = sleepers(mark) if runtime == "runc" else sandbox_processes(name)
        assert name in bundles(runtime)
        kill(process)
        assert all(ends(pid) for pid in pids)
    asyncio.run(_visit(runtime))
    assert name not in bundles(runtime)
    assert not Path("/dev/shm", name).exists()
    until(lambda: not sandbox_processes(name))


async def _visit(name):
    async with connect(name):
        pass


def test_the_image_is_never_written(runtime):
    store = Store.default()
    root = resolve("bench", store).layers[0]
    before = fingerprint(root)

    async def main():
        async with connect(runtime) as substrate, substrate.create(Spec(image="bench")) as box:
            await box.run("echo x >/etc/new; rm -rf /usr/share/doc; chmod 777 /usr/bin")
            await box.write("/new/file", b"x")

    asyncio.run(main())
    store.close()
    assert fingerprint(root) == before


def test_writes_can_go_to_disk(runtime):
    async def main():
        async with connect(runtime) as substrate, substrate.create(Spec(image="bench", storage="disk")) as box:
            assert (
                await box.run("head -c 10000000 /dev/zero >/root/big && stat -c %s /root/big")
            ).stdout == b"10000000\n"

    asyncio.run(main())


def test_runc_names_what_it_cannot_bound():
    offered = find("runc")[0].probe().capabilities
    if offered is None:
        pytest.skip("runc is not installed; enable: make substrates")
    assert offered.limits == {"cpus", "memory_bytes", "pids"}
    assert "disk_bytes" in offered.notes["limits"]
    assert Limits(disk_bytes=1 << 20).given().keys() - offered.limits
