"""The conformance suite on hosted drivers: the vendors' own SDKs, against servers that speak their wire formats.

Protocol tests: they show a driver's calls and its life cycle, and say nothing of how a vendor performs.
"""

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import pytest
from support.protocol.server import Served, served

from dutyfree.substrates.registry import connect
from dutyfree.testing import ContractSuite

pytestmark = [pytest.mark.slow("vendors' SDKs over their wire formats"), pytest.mark.protocol]

HELD_UP = "the script that carries a command waits for the output's end, whoever keeps it open"
GAPS = {
    "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "a shell reports a signal as an exit code of 128 + n",
    "test_what_a_command_leaves_running_is_killed_at_its_end": HELD_UP,
    "test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back": HELD_UP,
    "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an API call per command does not offer",
}
ENDLESS = frozenset(name for name, why in GAPS.items() if why == HELD_UP)


@pytest.fixture(scope="module")
def e2b_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("e2b", reason="the e2b SDK is not installed; enable: pip install 'dutyfree[e2b]'")
    with served("support.protocol.e2b", tmp_path_factory.mktemp("e2b")) as server:
        with pytest.MonkeyPatch.context() as patch:
            e2b_account(patch, server)
            asyncio.run(once("e2b"))
        yield server


def e2b_account(patch: pytest.MonkeyPatch, server: Served) -> None:
    for name, value in (("API_URL", server.url), ("SANDBOX_URL", server.url), ("API_KEY", server.key)):
        patch.setenv(f"E2B_{name}", value)


async def once(name: str) -> None:
    """What an SDK makes at its first use, and keeps, is there before a test counts what it holds."""
    async with connect(name) as substrate, substrate.create() as box:
        assert (await box.run(["true"])).ok


class TestE2b(ContractSuite):
    substrate_name = "e2b"
    gaps: ClassVar[dict[str, str]] = GAPS
    endless = ENDLESS

    @pytest.fixture(autouse=True)
    def _there(self, e2b_server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        e2b_account(monkeypatch, e2b_server)
        yield
        e2b_server.settle()
        assert e2b_server.places() == {}
