"""Intervals hold what they promise, on simulated data whose truth is known."""

import numpy as np
import pytest

from dutyfree.meter import stats

pytestmark = pytest.mark.slow("intervals hold what they say")

TRIALS = 300


def simulate(rng, n, median=1.0, sigma=0.3):
    """Latencies look like this: never below a floor, with a tail to the right."""
    return median * rng.lognormal(0.0, sigma, n)


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 800)


@pytest.mark.parametrize("n", [20, 100])
def test_the_median_s_interval_holds_the_median_95_times_in_100(n):
    rng = np.random.default_rng(n)
    hits = sum(low <= 1.0 <= high for low, high in (stats.median_interval(simulate(rng, n)) for _ in range(TRIALS)))
    assert 0.91 <= hits / TRIALS <= 0.985


def test_the_tax_s_interval_holds_the_tax_95_times_in_100():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(TRIALS):
        _, (low, high) = stats.tax(simulate(rng, 60, median=1.25), simulate(rng, 60))
        hits += low <= 0.25 <= high
    assert 0.91 <= hits / TRIALS <= 0.985


def test_equal_substrates_show_no_tax_that_excludes_zero_more_often_than_5_in_100():
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(TRIALS):
        _, (low, high) = stats.tax(simulate(rng, 60), simulate(rng, 60))
        wrong += not low <= 0 <= high
    assert wrong / TRIALS <= 0.09


def test_quantiles_are_those_of_numpy():
    x = np.arange(1.0, 101.0)
    found = stats.summarise(x)
    assert (found.p50, found.p95, found.p99) == tuple(np.quantile(x, [0.5, 0.95, 0.99]))
    assert found.sd == pytest.approx(np.std(x, ddof=1))
    assert (found.low, found.high, found.n) == (1.0, 100.0, 100)


def test_a_single_sample_has_no_spread():
    found = stats.summarise([2.0])
    assert found.ci_p50 == (2.0, 2.0)
    assert found.sd == 0


def test_equal_samples_have_an_interval_of_no_width():
    assert stats.summarise([3.0] * 10).ci_p50 == (3.0, 3.0)


def test_ratios_are_taxes_and_one():
    value, (low, high) = stats.ratio([2.0, 2.1, 1.9] * 5, [1.0, 1.1, 0.9] * 5)
    assert value == pytest.approx(2.0)
    assert low < value < high


def test_the_same_samples_give_the_same_interval():
    x = simulate(np.random.default_rng(1), 50)
    assert stats.median_interval(x) == stats.median_interval(x)
