"""podman without root: whose the containers are, what is not offered, and what is left after kill -9 of the client."""

import asyncio
import os
from pathlib import Path

import pytest
from doomed import client, ends, kill, sleepers, until

from dutyfree.core.errors import Misuse, Unavailable, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.substrates.container.podman_service import Account
from dutyfree.substrates.registry import connect

pytestmark = [
    pytest.mark.slow("container engines and runtimes"),
    pytest.mark.usefixtures("bench"),
    pytest.mark.timeout(300),
]

CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()


def processes_of(uid):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            status = (entry / "status").read_text() if entry.name.isdecimal() else ""
        except OSError:
            continue
        if f"\nUid:\t{uid}\t" in status and "\nState:\tZ" not in status:
            found.append(int(entry.name))
    return found


def test_root_inside_is_the_ordinary_user_outside_and_nothing_of_theirs_is_left(rootless_user):
    uid = Account.find(rootless_user).uid

    async def main():
        async with connect("podman", user=rootless_user) as substrate, substrate.create(Spec(image="bench")) as box:
            running = asyncio.ensure_future(box.run(["sleep", "86402.1"]))
            assert (await box.run(["id", "-u"])).stdout == b"0\n"
            (pid,) = sleepers("86402.1")
            assert os.stat(f"/proc/{pid}").st_uid == uid
            await box.write("/root/file", b"kept")
            snapshot = await box.snapshot()
            async with substrate.create(Spec(image=snapshot.image)) as other:
                assert await other.read("/root/file") == b"kept"
            running.cancel()

    asyncio.run(main())
    until(lambda: not processes_of(uid))


@pytest.mark.skipif(CGROUP_V2, reason="cgroup v2 can be delegated to users: limits are then offered")
def test_limits_without_a_cgroup_of_ones_own_are_unsupported(rootless_user):
    async def main():
        async with connect("podman", user=rootless_user) as substrate:
            assert substrate.capabilities.limits == frozenset()
            for limits in (Limits(memory_bytes=64 << 20), Limits(cpus=1), Limits(pids=16)):
                with pytest.raises(Unsupported, match="no cgroup"):
                    await substrate.create(Spec(image="bench", limits=limits))

    asyncio.run(main())


def test_kill_9_of_the_client_ends_the_users_container_and_service(rootless_user):
    uid = Account.find(rootless_user).uid
    with client(f"podman?user={rootless_user}", "86402.2") as (process, name):
        until(lambda: sleepers("86402.2"))
        (pid,) = sleepers("86402.2")
        kill(process)
        assert ends(pid)

    async def listed():
        async with connect("podman", user=rootless_user) as substrate:
            reply = await substrate.backend._http.call("GET", "/containers/json", all=1)
            return [name.lstrip("/") for found in reply.json() for name in found["Names"]]

    assert name not in asyncio.run(listed())
    until(lambda: not processes_of(uid))


def test_a_user_who_is_not_there_is_misuse_and_one_without_ids_is_told_the_command():
    with pytest.raises(Misuse, match="user"):
        Account.find("dutyfree-nobody-at-all")
    with pytest.raises(Unavailable, match="usermod --add-subuids"):
        Account.find("nobody")
    with pytest.raises(Misuse, match="user"):
        asyncio.run(connect("podman", user="nobody", socket="/nowhere").__aenter__())
