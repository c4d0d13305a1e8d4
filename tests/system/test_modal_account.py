"""`modal` with the vendor's own SDK, against a server that speaks its protocol: errors, secrets, clocks, clients that die."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from support.protocol.server import PATIENCE_S, Served, served

import dutyfree
from dutyfree.substrates.registry import find
from dutyfree.testing.base import exists, until

pytestmark = [pytest.mark.slow("vendors' SDKs over their wire formats"), pytest.mark.protocol]

WRONG = "as-wrong-0123456789abcdef"
CLIENT = """
import asyncio, os, signal, sys
import dutyfree

async def main():
    async with dutyfree.connect("modal", ttl="15", dispatch=sys.argv[1]) as substrate:
        async with substrate.create() as box:
            asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGKILL)
            await box.run(["sleep", "600"])

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("modal", reason="the modal SDK is not installed; enable: pip install 'dutyfree[modal]'")
    home = tmp_path_factory.mktemp("modal")
    with served("support.protocol.modal", home) as made, pytest.MonkeyPatch.context() as patch:
        account = {"SERVER_URL": made.url, "TOKEN_ID": "ak-protocol", "TOKEN_SECRET": made.key}
        for name, value in account.items():
            patch.setenv(f"MODAL_{name}", value)
        asyncio.run(created("host"))
        yield made


@pytest.fixture(autouse=True)
def there(server: Served) -> Iterator[None]:
    yield
    server.settle()
    assert server.places() == {}


async def created(image: str, **options: str) -> None:
    async with dutyfree.connect("modal", **options) as substrate, substrate.create(dutyfree.Spec(image=image)) as box:
        assert (await box.run(["true"])).ok


def everything(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


def killed_client(dispatch: str) -> None:
    client = subprocess.run([sys.executable, "-c", CLIENT, dispatch], env=os.environ, check=False)
    assert client.returncode == -signal.SIGKILL


def test_a_secret_that_the_vendor_does_not_take_is_unavailable_and_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MODAL_TOKEN_SECRET", WRONG)
    with pytest.raises(dutyfree.Unavailable, match=r"the secret \$MODAL_TOKEN_SECRET of") as caught:
        asyncio.run(created("host"))
    assert caught.value.enable == "export MODAL_TOKEN_ID=… MODAL_TOKEN_SECRET=…"
    assert WRONG not in everything(caught.value)


def test_an_error_of_the_vendor_that_quotes_the_secret_is_shown_without_it(server: Served):
    with pytest.raises(dutyfree.DriverError, match=r"cannot start a sandbox for \$MODAL_TOKEN_SECRET") as caught:
        asyncio.run(created("broken:1"))
    assert server.key not in everything(caught.value)


def test_no_room_at_the_vendor_is_saturated():
    with pytest.raises(dutyfree.Saturated, match="maximum number of sandboxes"):
        asyncio.run(created("full:1"))


def test_an_image_that_no_registry_has_is_misuse():
    with pytest.raises(dutyfree.Misuse, match="manifest for nobodys:1 not found") as caught:
        asyncio.run(created("nobodys:1"))
    assert caught.value.field == "image"


def test_a_vendor_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MODAL_SERVER_URL", "http://127.0.0.1:9")
    with pytest.raises(dutyfree.Unavailable) as caught:
        asyncio.run(created("host"))
    assert caught.value.driver == "modal"


def test_an_address_that_is_not_the_vendors_own_is_told_with_the_version(server: Served):
    async def main() -> str:
        async with dutyfree.connect("modal") as substrate:
            return substrate.version

    assert asyncio.run(main()).endswith(f" at {server.url}")


@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_a_sandbox_that_the_vendor_ended_is_lost(server: Served, dispatch: str):
    import modal

    async def main() -> None:
        async with dutyfree.connect("modal", dispatch=dispatch) as substrate, substrate.create() as box:
            running = asyncio.create_task(box.run("touch /tmp/here; sleep 60"))
            await until(lambda: exists(box, "/tmp/here"))
            (machine,) = server.places()
            theirs = await modal.Client.from_credentials.aio("ak-protocol", server.key)
            await (await modal.Sandbox.from_id.aio(f"sb-{machine}", client=theirs)).terminate.aio()
            with pytest.raises(dutyfree.SandboxLost):
                await running
            with pytest.raises(dutyfree.SandboxLost):
                await box.run(["true"])
            await theirs.__aexit__(None, None, None)

    asyncio.run(main())


def test_a_sandbox_whose_agent_has_ended_is_ended_at_the_vendors(server: Served):
    async def main() -> None:
        async def gone() -> bool:
            return not await asyncio.to_thread(server.places)

        async with dutyfree.connect("modal") as substrate:
            await substrate.create(dutyfree.Spec(idle_s=0.5))
            assert not await gone()
            await until(gone)

    asyncio.run(main())


@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_what_a_killed_client_left_is_ended_by_the_next_one(server: Served, dispatch: str):
    killed_client(dispatch)
    assert len(server.places()) == 1
    asyncio.run(created("host"))
    assert server.places() == {}


def test_what_a_killed_client_left_ends_by_the_clock_inside(server: Served):
    killed_client("agent")
    assert len(server.places()) == 1
    end_s = time.monotonic() + 15 + PATIENCE_S
    while server.places():
        assert time.monotonic() < end_s


def test_the_clock_inside_is_set_again_while_the_owner_lives():
    async def main() -> None:
        async with dutyfree.connect("modal", ttl="15") as substrate, substrate.create() as box:
            assert (await box.run(["sleep", "20"])).ok  # longer than it has without an owner

    asyncio.run(main())


def test_without_a_credential_it_says_which_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MODAL_TOKEN_SECRET")
    found = find("modal")[0].probe()
    assert not found.available
    assert (found.reason, found.enable) == ("MODAL_TOKEN_SECRET is not set", "export MODAL_TOKEN_SECRET=…")


def test_looking_does_not_import_the_sdk():
    script = "import sys; from dutyfree.substrates.modal import driver; driver.probe(); print('modal' in sys.modules)"
    assert find_spec("modal") is not None
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert said.stdout == b"False\n"
