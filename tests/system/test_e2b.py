"""`e2b` with the vendor's own SDK, against a server that speaks its wire format: errors, secrets, and clients that die."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from support.protocol.server import PATIENCE_S, Served, served

import dutyfree
from dutyfree.cli.measure import _available
from dutyfree.core.contract import Sandbox

pytestmark = [pytest.mark.slow("vendors' SDKs over their wire formats"), pytest.mark.protocol]

SECRET = "e2b_wrong_0123456789abcdef"
CLIENT = """
import asyncio, os, signal, sys
import dutyfree

async def main():
    async with dutyfree.connect("e2b", ttl="15") as substrate:
        async with substrate.create() as box:
            asyncio.get_running_loop().call_later(float(sys.argv[1]), os.kill, os.getpid(), signal.SIGKILL)
            await box.run(["sleep", "600"])

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("e2b", reason="the e2b SDK is not installed; enable: pip install 'dutyfree[e2b]'")
    with served("support.protocol.e2b", tmp_path_factory.mktemp("e2b")) as made:
        with pytest.MonkeyPatch.context() as patch:
            account(patch, made)
            asyncio.run(created("base"))
        yield made


@pytest.fixture(autouse=True)
def there(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    account(monkeypatch, server)
    yield
    server.settle()
    assert server.places() == {}


def account(patch: pytest.MonkeyPatch, server: Served) -> None:
    for name, value in (("API_URL", server.url), ("SANDBOX_URL", server.url), ("API_KEY", server.key)):
        patch.setenv(f"E2B_{name}", value)


async def created(image: str) -> None:
    async with dutyfree.connect("e2b") as substrate, substrate.create(dutyfree.Spec(image=image)) as box:
        assert (await box.run(["true"])).ok


def everything(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


def test_a_key_that_the_vendor_does_not_take_is_unavailable_and_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("E2B_API_KEY", SECRET)
    with pytest.raises(dutyfree.Unavailable, match=r"the key \$E2B_API_KEY is not valid") as caught:
        asyncio.run(created("base"))
    assert caught.value.enable == "export E2B_API_KEY=…"
    assert SECRET not in everything(caught.value)


def test_an_error_of_the_vendor_that_quotes_the_key_is_shown_without_it(server: Served):
    with pytest.raises(dutyfree.DriverError, match=r"cannot start a sandbox for \$E2B_API_KEY") as caught:
        asyncio.run(created("broken-template"))
    assert server.key not in everything(caught.value)


def test_no_room_at_the_vendor_is_saturated():
    with pytest.raises(dutyfree.Saturated, match="maximum number of sandboxes"):
        asyncio.run(created("full-template"))


def test_a_template_nobody_knows_is_misuse_of_the_image():
    with pytest.raises(dutyfree.Misuse, match="template 'nobodys' not found") as caught:
        asyncio.run(created("nobodys"))
    assert caught.value.field == "image"


def test_a_vendor_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("E2B_API_URL", "http://127.0.0.1:9")
    with pytest.raises(dutyfree.Unavailable) as caught:
        asyncio.run(created("base"))
    assert caught.value.driver == "e2b"


def test_another_template_is_an_option_or_an_image(server: Served):
    async def main() -> None:
        async with dutyfree.connect("e2b?template=other-template") as substrate, substrate.create():
            assert len(server.places()) == 1

    asyncio.run(main())
    asyncio.run(created("other-template"))


def test_an_address_that_is_not_the_vendors_own_is_told_with_the_version(server: Served):
    async def main() -> str:
        async with dutyfree.connect("e2b") as substrate:
            return substrate.version

    assert asyncio.run(main()).endswith(f" at {server.url}")


def test_a_sandbox_that_the_vendor_ended_is_lost(server: Served):
    from e2b import AsyncSandbox

    async def main() -> None:
        async with dutyfree.connect("e2b") as substrate, substrate.create() as box:
            running = asyncio.create_task(box.run("touch /tmp/here; sleep 60"))
            await until_there(box, "/tmp/here")
            (machine,) = server.places()
            assert await AsyncSandbox.kill(machine)
            with pytest.raises(dutyfree.SandboxLost):
                await running
            with pytest.raises(dutyfree.SandboxLost):
                await box.run(["true"])

    asyncio.run(main())


def test_a_vendor_that_vanishes_ends_calls_and_does_not_hold_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Served
):
    async def main(runner: ExitStack) -> None:
        own = runner.enter_context(served("support.protocol.e2b", tmp_path))
        account(monkeypatch, own)
        substrate = await dutyfree.connect("e2b")
        box = await substrate.create()
        running = asyncio.create_task(box.run("touch /tmp/here; sleep 60"))
        await until_there(box, "/tmp/here")
        runner.close()
        with pytest.raises((dutyfree.SandboxLost, dutyfree.Unavailable)):
            await running
        with pytest.raises(dutyfree.Unavailable):
            await substrate.close()
        own.settle()

    with ExitStack() as stack:
        asyncio.run(main(stack))


def test_the_command_has_its_own_time_and_the_call_the_rest():
    async def main() -> dutyfree.Outcome:
        async with dutyfree.connect("e2b") as substrate, substrate.create() as box:
            return await box.run(["sleep", "0.1"])

    outcome = asyncio.run(main())
    assert outcome.run_ns >= 100_000_000
    assert outcome.dispatch_ns > 0


def test_what_a_killed_client_left_is_ended_by_the_next_one(server: Served):
    killed_client("0")
    assert len(server.places()) == 1
    asyncio.run(created("base"))
    assert server.places() == {}


def test_what_a_killed_client_left_is_ended_by_the_vendors_own_clock(server: Served):
    killed_client("0.2")
    (left_s,) = server.places().values()
    assert left_s <= 15
    end_s = time.monotonic() + left_s + PATIENCE_S
    while server.places():
        assert time.monotonic() < end_s


def test_hosted_sandboxes_are_measured_only_if_they_are_named(monkeypatch: pytest.MonkeyPatch):
    said = StringIO()
    assert "e2b" not in _available(Console(file=said, width=200), quick=False)
    assert "not measured: e2b: each sandbox is paid for; name it to measure it: -s e2b" in said.getvalue()


def killed_client(delay_s: str) -> None:
    client = subprocess.run([sys.executable, "-c", CLIENT, delay_s], env=os.environ, check=False)
    assert client.returncode == -signal.SIGKILL


async def until_there(box: Sandbox, path: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (await box.run(["test", "-e", path])).ok:
            pass
