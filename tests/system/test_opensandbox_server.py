"""A real OpenSandbox server: refusals, secrets, clients that die, and both ways to a sandbox."""

import asyncio
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import pytest

import dutyfree
from dutyfree.core.errors import Misuse, SandboxLost, Unavailable
from dutyfree.core.outcome import Outcome
from dutyfree.driver.owner import OWNER_LABEL, owner_mark
from dutyfree.substrates.opensandbox import address

PATIENCE_S = 100.0
SPEC = dutyfree.Spec(image="bench", network="host")
CLIENT = """
import asyncio, os, signal, sys
import dutyfree

async def main(moment):
    async with dutyfree.connect("opensandbox", ttl="15") as substrate:
        creating = asyncio.ensure_future(substrate._create(dutyfree.Spec(image="bench", network="host")))
        if moment == "create":
            while all(one.is_idle() for one in substrate._vendor._transport._pool.connections):
                await asyncio.sleep(0.001)
        else:
            box = await creating
            running = asyncio.ensure_future(box.run(["sleep", "600"]))
            await box.run(["true"])
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
"""Kills itself while the server makes its sandbox, or while a command runs in it."""

pytestmark = [pytest.mark.slow("container engines and runtimes"), pytest.mark.usefixtures("opensandbox")]


@pytest.fixture(scope="module", autouse=True)
def _warm(opensandbox: None) -> None:
    """What the SDK makes at its first use, and keeps, is there before a test counts what it holds."""
    asyncio.run(ran(["true"]))


async def ran(command: list[str], spec: dutyfree.Spec = SPEC, **options: str) -> Outcome:
    async with dutyfree.connect("opensandbox", **options) as substrate, substrate.create(spec) as box:
        return await box.run(command)


async def left_over() -> dict[str, str]:
    """What the server lists of ours; nothing is swept by looking."""
    from dutyfree.substrates.opensandbox.vendor import OpenSandboxVendor

    vendor = OpenSandboxVendor(address.Address.find())
    try:
        return dict(await vendor.marked(OWNER_LABEL))
    finally:
        await vendor.close()


def killed_client(moment: str) -> int:
    with subprocess.Popen([sys.executable, "-c", CLIENT, moment]) as client:
        assert client.wait() == -signal.SIGKILL
        return client.pid


def sandboxes_of(pid: int) -> list[str]:
    return [one for one, mark in asyncio.run(left_over()).items() if mark.split(".")[2] == str(pid)]


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s


def test_what_a_killed_client_left_is_ended_by_the_next_one():
    pid = killed_client("run")
    assert len(sandboxes_of(pid)) == 1
    asyncio.run(ran(["true"]))
    assert sandboxes_of(pid) == []


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("moment", ["create", "run"])
def test_what_a_killed_client_left_is_ended_by_the_servers_own_clock(moment: str):
    pid = killed_client(moment)
    until(lambda: len(sandboxes_of(pid)) == 1)
    until(lambda: not sandboxes_of(pid))


def test_a_sandbox_that_somebody_else_ends_is_lost():
    async def main() -> None:
        async with dutyfree.connect("opensandbox") as substrate, substrate.create(SPEC) as box:
            running = asyncio.ensure_future(box.run(["sleep", "600"]))
            assert (await box.run(["true"])).ok
            (machine,) = (one for one, mark in (await left_over()).items() if mark == owner_mark())
            await substrate._vendor.end(machine)
            with pytest.raises(SandboxLost):
                await running
            with pytest.raises(SandboxLost):
                await box.run(["true"])
            await substrate._vendor.end(machine)

    asyncio.run(main())


def test_a_wrong_key_is_unavailable_and_is_not_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(address.PLACE, address.Address.find().domain)
    monkeypatch.setenv(address.KEY, "wrong-0123456789abcdef")
    with pytest.raises(Unavailable) as caught:
        asyncio.run(ran(["true"]))
    assert "wrong-0123456789abcdef" not in "".join(traceback.format_exception(caught.value))


def test_an_image_that_the_server_cannot_have_is_misuse():
    with pytest.raises(Misuse, match="image") as caught:
        asyncio.run(ran(["true"], dutyfree.Spec(image="localhost/dutyfree/nowhere:none", network="host")))
    assert caught.value.driver == "opensandbox"


def test_a_sandbox_can_be_reached_through_the_server():
    outcome = asyncio.run(ran(["sh", "-c", "printf '\\0\\377'; exit 3"], proxy="yes"))
    assert (outcome.exit_code, outcome.stdout) == (3, b"\0\xff")


def test_the_commands_own_time_is_told_apart_from_the_dispatch():
    outcome = asyncio.run(ran(["sleep", "0.1"]))
    assert outcome.run_ns >= 100_000_000
    assert outcome.dispatch_ns > 0
