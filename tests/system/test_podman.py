"""What is special to podman: a service of our own, and what is left of it after kill -9 of its client."""

import asyncio

import pytest
from doomed import client, ends, kill, sleepers, until

from dutyfree.core.spec import Spec
from dutyfree.substrates.container.podman import driver
from dutyfree.substrates.container.podman_service import storage
from dutyfree.substrates.registry import connect

found = driver.probe()
pytestmark = [
    pytest.mark.slow("container engines and runtimes"),
    pytest.mark.skipif(not found.available, reason=f"podman: {found.reason}; enable: {found.enable}"),
    pytest.mark.usefixtures("bench"),
]


def mounts():
    with open("/proc/self/mountinfo") as table:
        return [line for line in table if str(storage()) in line]


@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_kill_9_of_the_client_ends_container_and_service_and_the_next_client_finds_nothing(dispatch):
    mark = f"86401.{1 if dispatch == 'api' else 2}"
    with client(f"podman?dispatch={dispatch}", mark) as (process, name):
        until(lambda: sleepers(mark))
        (pid,) = sleepers(mark)
        kill(process)
        assert ends(pid)
    containers = asyncio.run(listed())
    assert name not in containers
    until(lambda: not mounts())


async def listed():
    async with connect("podman") as substrate:
        reply = await substrate.backend._http.call("GET", "/containers/json", all=1)
        return [name.lstrip("/") for found in reply.json() for name in found["Names"]]


def test_a_service_of_our_own_ends_with_the_substrate_and_takes_its_mounts_along():
    async def main():
        async with connect("podman") as substrate:
            async with substrate.create(Spec(image="bench")) as box:
                assert (await box.run(["true"])).ok
            return substrate.service._process

    assert asyncio.run(main()).returncode is not None
    assert mounts() == []
