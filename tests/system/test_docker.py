"""What is special to containers of an engine: the death of its client, orphans, the hardened profile, exported images."""

import asyncio
import json
import socket as socket_module
import subprocess
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest
from doomed import client, ends, kill, sleepers, until
from support.hardened import check_hardened

from dutyfree.core.errors import DriverError, Misuse, Unavailable, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.core.timeline import Timeline
from dutyfree.driver.backend import Order
from dutyfree.driver.owner import owner_mark
from dutyfree.substrates.container.engine import Container, container_config
from dutyfree.substrates.container.engine_http import Http, ask
from dutyfree.substrates.container.engine_image import SNAPSHOT_LABEL
from dutyfree.substrates.registry import connect

pytestmark = pytest.mark.slow("container engines and runtimes")


def asked(socket, what):
    connection = HTTPConnection("engine")
    connection.sock = socket_module.socket(socket_module.AF_UNIX)
    connection.sock.connect(socket)
    try:
        connection.request("GET", what)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def exists(socket, name):
    return "Id" in ask(socket, f"/containers/{name}/json")


@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_kill_9_of_the_client_ends_the_container_at_once_and_the_engine_removes_it(docker_engine, dispatch):
    mark = f"86400.{1 if dispatch == 'api' else 2}"
    with client(f"docker?socket={docker_engine}&dispatch={dispatch}", mark) as (process, name):
        until(lambda: sleepers(mark))
        (pid,) = sleepers(mark)
        assert exists(docker_engine, name)
        kill(process)
        assert ends(pid)
        until(lambda: not exists(docker_engine, name))


@contextmanager
def unremovable(socket, name):
    """The engine cannot remove the container within the block: a file of its is immutable."""
    file = Path(ask(socket, f"/containers/{name}/json")["GraphDriver"]["Data"]["UpperDir"]) / "held"
    file.touch()
    subprocess.run(["chattr", "+i", file], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", file], check=True)
        asyncio.run(_remove(socket, name))


async def _remove(socket, name):
    await Container(Http(socket, "docker"), name).remove_by_force()


@pytest.fixture
def dead_owner():
    owner = subprocess.Popen(["sleep", "600"])
    mark = owner_mark(owner.pid)
    owner.kill()
    owner.wait()
    return mark


async def leave(socket, name, mark):
    """A container that was made by whoever has the mark, and never started."""
    async with connect("docker", socket=socket) as substrate:
        image = await substrate.image_key("bench")
    order = Order(name, Spec(), "none", None, None, Timeline(), 0)
    wanted = container_config(order, image=image, command=["true"], owner=mark, agent=None, profile="default", extra={})
    await Http(socket, "docker").call("POST", "/containers/create", wanted, name=name)


async def work(socket):
    async with connect("docker", socket=socket) as substrate, substrate.create(Spec(image="bench")) as box:
        return (await box.run(["echo", "done"])).text()


def test_containers_of_a_dead_owner_are_removed_when_the_next_one_connects(docker_engine, dead_owner):
    async def main():
        await leave(docker_engine, "dutyfree-orphan", dead_owner)
        await leave(docker_engine, "dutyfree-foreign", "elsewhere.1.2.3")
        try:
            async with connect("docker", socket=docker_engine):
                return exists(docker_engine, "dutyfree-orphan"), exists(docker_engine, "dutyfree-foreign")
        finally:
            await _remove(docker_engine, "dutyfree-orphan")
            await _remove(docker_engine, "dutyfree-foreign")

    assert asyncio.run(main()) == (False, True)


def test_an_orphan_that_cannot_be_removed_keeps_nobody_from_working(docker_engine, dead_owner):
    asyncio.run(leave(docker_engine, "dutyfree-stuck", dead_owner))
    with unremovable(docker_engine, "dutyfree-stuck"):
        asyncio.run(leave(docker_engine, "dutyfree-orphan", dead_owner))
        for _ in range(2):
            assert asyncio.run(work(docker_engine)) == "done\n"
        assert exists(docker_engine, "dutyfree-stuck")
        assert not exists(docker_engine, "dutyfree-orphan")
    assert not exists(docker_engine, "dutyfree-stuck")


def test_a_sandbox_that_cannot_be_destroyed_is_told_after_the_others_are(docker_engine):
    async def main(stack):
        async with connect("docker", socket=docker_engine) as substrate:
            boxes.extend([(await substrate.create(Spec(image="bench"))).id for _ in range(3)])
            stack.enter_context(unremovable(docker_engine, boxes[1]))

    boxes = []
    with ExitStack() as stack:
        with pytest.raises(DriverError, match="cannot remove it"):
            asyncio.run(main(stack))
        assert [exists(docker_engine, box) for box in boxes] == [False, True, False]
        assert asyncio.run(work(docker_engine)) == "done\n"
    assert not exists(docker_engine, boxes[1])


def snapshots(socket):
    """Every image that was committed by us, by its name."""
    filters = quote(json.dumps({"label": [SNAPSHOT_LABEL]}))
    return [
        name for found in asked(socket, f"/images/json?filters={filters}") for name in found["RepoTags"] or ["none"]
    ]


def test_snapshots_without_a_key_go_with_their_substrate_and_removed_ones_when_nobody_uses_them(docker_engine):
    async def main():
        async with connect("docker", socket=docker_engine) as substrate:
            box = await substrate.create(Spec(image="bench"))
            await box.snapshot()
            kept = await box.snapshot("kept")
            await substrate.create(Spec(image=kept.image))
            await kept.remove()
            for unused in await box.fork(2):
                unused.close()
            return snapshots(docker_engine)

    assert len(asyncio.run(main())) == 3
    assert snapshots(docker_engine) == []


def test_a_snapshot_outlives_its_maker_only_if_it_has_a_key(docker_engine):
    mark = "86400.4"

    async def main():
        async with connect("docker", socket=docker_engine) as substrate:
            held = await substrate.holds("snapshot:lasting")
            async with substrate.create(Spec(image="snapshot:lasting")) as box:
                content = await box.read("/root/x")
            await substrate.remove_snapshot("lasting")
            return held, content

    with client(
        f"docker?socket={docker_engine}",
        mark,
        "await box.write('/root/x', b'x'); await box.snapshot(); await box.snapshot('lasting')",
    ) as (process, _):
        kill(process)
    assert len(snapshots(docker_engine)) == 2
    assert asyncio.run(main()) == (True, b"x")
    assert snapshots(docker_engine) == []


def test_the_hardened_profile_has_no_way_to_write_the_root_or_to_gain_privileges(docker_engine):
    check_hardened(lambda: connect("docker", socket=docker_engine, profile="hardened"))


def test_nothing_of_ours_is_left_in_the_image_or_visible_in_its_root(docker_engine):
    async def main():
        async with connect("docker", socket=docker_engine) as substrate, substrate.create(Spec(image="bench")) as box:
            return await box.run("ls -A / | grep dutyfree; cat /proc/1/comm; chmod 777 /dev/.dutyfree/agent")

    outcome = asyncio.run(main())
    assert outcome.stdout == b"agent\n"
    assert b"Read-only" in outcome.stderr


def test_an_api_deadline_finds_children_that_left_the_session(docker_engine):
    mark = "86400.3"

    async def main():
        async with (
            connect("docker", socket=docker_engine, dispatch="api") as substrate,
            substrate.create(Spec(image="bench")) as box,
        ):
            outcome = await box.run(f"setsid sh -c 'sleep {mark} & sleep {mark}' & sleep {mark}", timeout_s=2)
            return outcome, sleepers(mark)

    outcome, left = asyncio.run(main())
    assert outcome.ending == "timeout"
    assert left == []


def test_the_host_image_is_refused_with_the_command_that_makes_another(docker_engine):
    async def main():
        async with connect("docker", socket=docker_engine) as substrate:
            with pytest.raises(Unsupported, match="dutyfree image build bench"):
                await substrate.create(Spec(image="host"))
            with pytest.raises(Unsupported, match="disk_bytes"):
                await substrate.create(Spec(image="bench", limits=Limits(disk_bytes=1 << 20)))

    asyncio.run(main())


def test_an_engine_that_is_not_there_is_unavailable_and_options_are_checked():
    async def main():
        with pytest.raises(Unavailable, match="make substrates"):
            await connect("docker", socket="/no/such/socket")
        with pytest.raises(Misuse, match="dispatch"):
            await connect("docker", dispatch="pigeon")
        with pytest.raises(Misuse, match="colour"):
            await connect("docker", colour="red")

    asyncio.run(main())
