"""Bounds are judged by intervals: one that holds the bound settles nothing."""

import pytest

from benchmarks.bounds import Results, judge
from benchmarks.interleave import Samples

MS = 1_000_000


def judged(scale, spread=0.0, n=40, failures=0):
    """The first bound, `create <= 1.5 x subprocess`, with our times at `scale` of the reference's."""
    wave = [1 + spread * ((7 * i) % n / n - 0.5) for i in range(n)]
    samples = {
        "native/create": Samples(times_ns=[int(scale * MS * w) for w in wave], failures=["lost"] * failures),
        "subprocess/true": Samples(times_ns=[int(MS * w) for w in wave]),
    }
    return judge(Results(samples=samples, throughput=None, crowd=None, missing={}))[0]


@pytest.mark.parametrize(
    ("scale", "spread", "met"), [(1.2, 0.1, True), (1.9, 0.1, False), (1.49, 1.0, None), (1.51, 1.0, None)]
)
def test_a_bound_is_met_or_missed_only_by_a_whole_interval(scale, spread, met):
    bound = judged(scale, spread)
    assert bound.met is met, bound.seen


def test_four_samples_settle_nothing():
    assert judged(1.0, n=4).met is None


def test_a_failure_misses():
    assert judged(1.0, failures=1).met is False
