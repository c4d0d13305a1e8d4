"""A real OpenSandbox server: refusals, secrets, clients that die, and both ways to a sandbox."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import traceback

import pytest

import dutyfree
from dutyfree.core.errors import Misuse, SandboxLost, Unavailable
from dutyfree.core.outcome import Outcome
from dutyfree.substrates.opensandbox import address
from dutyfree.substrates.sweep import OWNER_LABEL

PATIENCE_S = 100.0
SPEC = dutyfree.Spec(image="bench", network="host")
CLIENT = """
import asyncio, os, signal, sys
import dutyfree

async def main(delay_s, moment):
    async with dutyfree.connect("opensandbox", ttl="15") as substrate:
        die = lambda: asyncio.get_running_loop().call_later(float(delay_s), os.kill, os.getpid(), signal.SIGKILL)
        if moment == "create":
            die()
        async with substrate.create(dutyfree.Spec(image="bench", network="host")) as box:
            die()
            await box.run(["sleep", "600"])

asyncio.run(main(*sys.argv[1:]))
"""

pytestmark = pytest.mark.usefixtures("opensandbox")


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


def killed_client(delay_s: str, moment: str) -> int:
    with subprocess.Popen([sys.executable, "-c", CLIENT, delay_s, moment]) as client:
        assert client.wait() == -signal.SIGKILL
        return client.pid


def marks_of(pid: int) -> list[str]:
    return [one for one, mark in asyncio.run(left_over()).items() if mark.split(".")[2] == str(pid)]


def test_what_a_killed_client_left_is_ended_by_the_next_one():
    pid = killed_client("0", "run")
    assert len(marks_of(pid)) == 1
    asyncio.run(ran(["true"]))
    assert marks_of(pid) == []


@pytest.mark.parametrize(("delay_s", "moment"), [("0.2", "create"), ("1", "create"), ("0.2", "run")])
def test_what_a_killed_client_left_is_ended_by_the_servers_own_clock(delay_s: str, moment: str):
    pid = killed_client(delay_s, moment)
    end_s = time.monotonic() + PATIENCE_S
    while marks_of(pid):
        assert time.monotonic() < end_s
    assert not os.path.exists(f"/proc/{pid}")


def test_a_sandbox_that_somebody_else_ends_is_lost():
    async def main() -> None:
        async with dutyfree.connect("opensandbox") as substrate, substrate.create(SPEC) as box:
            running = asyncio.ensure_future(box.run(["sleep", "600"]))
            assert (await box.run(["true"])).ok
            (machine,) = marks_of_self(await left_over())
            await substrate._vendor.end(machine)
            with pytest.raises(SandboxLost):
                await running
            with pytest.raises(SandboxLost):
                await box.run(["true"])
            await substrate._vendor.end(machine)

    def marks_of_self(found: dict[str, str]) -> list[str]:
        return [one for one, mark in found.items() if mark.split(".")[2] == str(os.getpid())]

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
