"""Some seconds of random system calls, by a seed that is always the same; `make fuzz-syscalls` runs them for ten minutes."""

import os

import pytest
from syscalls import fuzz

from dutyfree.substrates.registry import find


@pytest.mark.slow("random system calls while the host is watched")
@pytest.mark.skipif(
    os.geteuid() != 0 or not find("native")[0].probe().available, reason="needs native as root: sudo make test"
)
def test_some_seconds_of_random_calls_take_nothing_from_the_host():
    found = fuzz(15, seed=1)
    assert found.wrong == []
    assert len(found.numbers) > 50, f"only {sorted(found.numbers)} succeeded at all"
