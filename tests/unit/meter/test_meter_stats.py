"""Statistics: what is given, what is not, and that failures are not forgotten. Coverage is in `tests/statistics`."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from dutyfree.meter import stats


def test_the_median_s_interval_has_the_exact_coverage_of_its_order_statistics_for_every_n():
    assert [n for n in range(1, 301) if stats.order_pair(n) is None] == [1, 2, 3, 4]
    for n in range(5, 301):
        low, high = stats.order_pair(n)
        exact = binom.pmf(range(low, high), n, 0.5).sum()
        assert 0.9295 <= exact <= 0.9705, n


def test_quantiles_are_those_of_numpy():
    x = np.arange(1.0, 101.0)
    found = stats.summarise(x)
    assert (found.p50, found.p95, found.p99) == tuple(np.quantile(x, [0.5, 0.95, 0.99]))
    assert found.sd == pytest.approx(np.std(x, ddof=1))
    assert (found.low, found.high, found.n) == (1.0, 100.0, 100)


def test_a_single_sample_has_no_spread_and_no_interval():
    found = stats.summarise([2.0])
    assert (found.ci_p50, found.ci_mean, found.sd, found.p95, found.p99) == (None,) * 5
    assert stats.tax([2.0], [1.0]) == (1.0, None)


@pytest.mark.parametrize(
    ("n", "p95", "p99"), [(19, False, False), (20, True, False), (99, True, False), (100, True, True)]
)
def test_tails_are_given_only_where_samples_reach_them(n, p95, p99):
    found = stats.summarise(np.arange(1.0, n + 1))
    assert (found.p95 is not None, found.p99 is not None) == (p95, p99)


def test_a_failed_trial_is_slower_than_any_that_succeeded():
    good = [1.0] * 20
    found = stats.summarise([*good, *[math.inf] * 10])
    assert (found.n, found.p50, found.p95, found.mean) == (30, 1.0, math.inf, 1.0)
    assert stats.summarise([1.0] * 10 + [math.inf] * 10).p50 == math.inf
    assert stats.tax([1.0] * 10 + [math.inf] * 10, good) == (math.inf, None)


def test_failures_are_paid_by_what_succeeded():
    assert stats.cost([1.0, 1.0, 600.0, 600.0], [1, 1, 0, 0]).seconds == 601.0


def test_a_failure_rate_that_was_seen_once_has_no_interval():
    assert stats.cost([1.0] * 40, [1.0] * 39 + [0.0]).ci95 is None


def test_equal_samples_have_an_interval_of_no_width():
    assert stats.summarise([3.0] * 10).ci_p50 == (3.0, 3.0)


def test_ratios_are_taxes_and_one():
    value, (low, high) = stats.ratio([2.0, 2.1, 1.9] * 5, [1.0, 1.1, 0.9] * 5)
    assert value == pytest.approx(2.0)
    assert low < value < high


@pytest.mark.parametrize(
    ("interval", "margin", "says"),
    [
        (None, 0.05, "not known"),
        ((0.01, 0.2), 0.05, "slower"),
        ((-0.2, -0.1), 0.05, "faster"),
        ((-0.2, 0.1), 0.05, "no difference seen"),
        ((-0.02, 0.04), 0.05, "equal"),
        ((-0.02, 0.04), 0.0, "no difference seen"),
    ],
)
def test_equal_is_said_only_where_the_whole_interval_is_within_the_margin(interval, margin, says):
    assert stats.verdict(interval, margin) == says
