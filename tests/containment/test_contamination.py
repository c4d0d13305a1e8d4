"""What a reset must not leave (PROBES 67 to 81), many times over."""

import os

import pytest

from benchmarks.contamination import contaminate
from dutyfree.substrates.registry import find

ROUNDS = 25


@pytest.mark.skipif(
    os.geteuid() != 0 or not find("native")[0].probe().available, reason="resets need native as root: sudo make test"
)
def test_nothing_that_was_planted_is_found_after_any_of_many_resets():
    assert contaminate(ROUNDS, 2, lambda _: None) == []
