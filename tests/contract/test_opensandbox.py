"""The conformance suite on a real OpenSandbox server."""

from typing import ClassVar

import pytest

from dutyfree.testing import ContractSuite, SharedSuite

HELD_UP = "the script that carries a command ends with its output, whoever keeps that open"


@pytest.fixture(scope="module")
def opensandbox_options(opensandbox: None) -> dict[str, str]:
    return {}


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
