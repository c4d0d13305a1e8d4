"""The conformance suite on `daytona`: the vendor's own SDK, against a server of ours that speaks its wire format."""

from collections.abc import Iterator
from typing import ClassVar

import pytest

from dutyfree.core.contract import Substrate
from dutyfree.core.pending import Pending
from dutyfree.substrates.registry import connect
from dutyfree.testing import ContractSuite
from dutyfree.testing.daytona import IMAGE, KEY, daytona_server

WHOLE = "the vendor has whole processors and GiB, and refuses the rest"
LIMIT_THAT_KILLS = "test_output_beyond_the_limit_is_fatal_if_asked"
GAPS = {
    "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
    "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an exec call per command does not offer",
    LIMIT_THAT_KILLS: "the vendor answers when the command has ended, and not before",
    "test_more_memory_than_the_limit_ends_as_oom": WHOLE,
    "test_less_memory_than_the_limit_is_fine": WHOLE,
    "test_more_disk_than_the_limit_cannot_be_written": WHOLE,
    "test_more_processor_time_than_the_limit_cannot_be_had": WHOLE,
    "test_a_limit_that_is_not_enforced_is_refused": WHOLE,
}

pytestmark = pytest.mark.protocol


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with daytona_server() as address:
        yield address


class TestDaytona(ContractSuite):
    substrate_name = "daytona"
    image = IMAGE
    gaps: ClassVar[dict[str, str]] = GAPS
    endless = frozenset({LIMIT_THAT_KILLS})

    @pytest.fixture(autouse=True)
    def _account(self, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DAYTONA_API_URL", service)
        monkeypatch.setenv("DAYTONA_API_KEY", KEY)

    def connect(self) -> Pending[Substrate]:
        return connect("dutyfree.substrates.daytona:driver")
