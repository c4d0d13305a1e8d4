"""Some seconds of each fuzzer, by a seed that is always the same; `make fuzz` runs them for ten minutes each."""

import pytest
from run import TARGETS, executions, fuzz, missing

pytestmark = pytest.mark.slow("seconds of every fuzzer")

SECONDS, SEED = 8, 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS)
def test_some_seconds_of_fuzzing_find_nothing(target, tmp_path):
    why = missing(target)
    if why is not None:
        pytest.skip(why)
    found, said = fuzz(target, SECONDS, SEED, tmp_path)
    assert found == [], said[-4000:]
    assert executions(said) > 10
