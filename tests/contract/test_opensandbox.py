"""The conformance suite on a real OpenSandbox server."""

from typing import ClassVar

import pytest

from dutyfree.core.contract import Substrate
from dutyfree.core.pending import Pending
from dutyfree.substrates.registry import connect
from dutyfree.testing import ContractSuite

HELD_UP = "the script that carries a command ends with its output, whoever keeps that open"


class TestOpenSandbox(ContractSuite):
    substrate_name = "opensandbox"
    image = "bench"
    options: ClassVar[dict[str, str]] = {}
    gaps: ClassVar[dict[str, str]] = {
        "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "a shell reports a signal as an exit code of 128 + n",
        "test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back": HELD_UP,
        "test_what_a_command_leaves_running_is_killed_at_its_end": HELD_UP,
    }
    endless = frozenset(name for name, why in gaps.items() if why == HELD_UP)

    def connect(self) -> Pending[Substrate]:
        return connect("opensandbox", **self.options)

    @pytest.fixture(autouse=True)
    def _there(self, opensandbox: None) -> None:
        """A server answers."""
