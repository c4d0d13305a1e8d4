"""The conformance suite on a real OpenSandbox server."""

from collections.abc import Iterator
from typing import ClassVar

import pytest

from dutyfree.core.contract import Substrate
from dutyfree.testing import ContractSuite, SharedSuite
from dutyfree.testing.sharing import Commons

pytestmark = pytest.mark.slow("container engines and runtimes")

HELD_UP = "the script that carries a command ends with its output, whoever keeps that open"


@pytest.fixture(scope="module")
def opensandbox_options(opensandbox: None) -> dict[str, str]:
    """The shared sandbox must outlive tests that do not use it: its loop stands still meanwhile, and sets no clock."""
    return {"ttl": "3600"}


class TestOpenSandbox(SharedSuite, ContractSuite):
    substrate_name = "opensandbox"
    image = "bench"
    engine = "opensandbox_options"
    gaps: ClassVar[dict[str, str]] = {
        "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "a shell reports a signal as an exit code of 128 + n",
        "test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back": HELD_UP,
        "test_what_a_command_leaves_running_is_killed_at_its_end": HELD_UP,
    }
    endless = frozenset(name for name, why in gaps.items() if why == HELD_UP)

    @pytest.fixture(autouse=True)
    def _keeps_no_connection(self, commons: Commons) -> Iterator[None]:
        yield
        commons.runner.run(drop_idle(commons.substrate))


async def drop_idle(substrate: Substrate) -> None:
    """A client keeps its connections for a while; those of the shared substrate are no leak of the test that made them."""
    for connection in substrate._vendor._transport._pool.connections:
        if connection.is_idle():
            await connection.aclose()
