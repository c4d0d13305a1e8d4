"""The conformance suite on `modal`, in both dispatch modes: the vendor's own SDK, against a server that speaks its protocol.

Protocol tests: they show the driver's calls and its life cycle, and say nothing of how the vendor performs.
"""

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import pytest
from support.protocol.server import Served, served

from dutyfree.substrates.registry import connect
from dutyfree.testing import ContractSuite, SharedSuite

pytestmark = pytest.mark.slow("vendors' SDKs over their wire formats")

NO_COUNT = "what stands for the vendor's containers here shows no count of kills inside"


@pytest.fixture(scope="module")
def modal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("modal", reason="the modal SDK is not installed; enable: pip install 'dutyfree[modal]'")
    with (
        served("support.protocol.modal", tmp_path_factory.mktemp("modal")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        modal_account(patch, server)
        asyncio.run(once())
        yield server
        assert server.places() == {}


@pytest.fixture(scope="module")
def modal_options(modal_server: Served) -> dict[str, str]:
    return {}


def modal_account(patch: pytest.MonkeyPatch, server: Served) -> None:
    account = {"SERVER_URL": server.url, "TOKEN_ID": "ak-protocol", "TOKEN_SECRET": server.key}
    # Connections that are dropped when they are idle, and made again, would look like something a test left behind.
    for name, value in {**account, "SANDBOX_CHANNEL_IDLE_TIMEOUT": "3600"}.items():
        patch.setenv(f"MODAL_{name}", value)


async def once() -> None:
    """What the SDK makes at its first use, and keeps, is there before a test counts what it holds."""
    async with connect("modal") as substrate, substrate.create() as box:
        assert (await box.run(["true"])).ok


@pytest.mark.protocol
class TestModal(SharedSuite, ContractSuite):
    substrate_name = "modal"
    image = "debian:12"
    engine = "modal_options"
    gaps: ClassVar[dict[str, str]] = {
        "test_more_memory_than_the_limit_ends_as_oom": NO_COUNT,
        "test_what_the_memory_limit_killed_is_told_where_the_command_survives_it": NO_COUNT,
        "test_what_the_memory_limit_killed_is_told_of_shells_and_streams_too": NO_COUNT,
    }

    @pytest.fixture(autouse=True)
    def _settles(self, modal_server: Served) -> Iterator[None]:
        """The SDK closes its connections on a thread of its own: a test is over when it has."""
        before = modal_server.connections()
        yield
        modal_server.settle(before)


class TestModalApi(TestModal):
    """As above, by exec calls."""

    options: ClassVar[dict[str, str]] = {"dispatch": "api"}
    gaps: ClassVar[dict[str, str]] = {
        "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
        "test_what_a_command_leaves_running_is_killed_at_its_end": "nothing of ours is inside to notice leftovers",
        "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an exec call per command does not offer",
        "test_more_memory_than_the_limit_ends_as_oom": NO_COUNT,
    }
