"""Intervals hold what they promise on simulated data whose truth is known: 93 to 97 times in 100, or there is none."""

import math

import numpy as np
import pytest

from dutyfree.meter import stats

pytestmark = pytest.mark.slow("intervals hold what they say")

SHAPES = {
    "skewed": (lambda rng, n: rng.lognormal(0.0, 0.5, n), 1.0, math.exp(0.125)),
    "tailed": (lambda rng, n: 0.2 + rng.exponential(1.0, n), 0.2 + math.log(2), 1.2),
    # 0.5 of the lower mode's mass lies below 1.0378, where 70 % x cdf = 0.5.
    "bimodal": (
        lambda rng, n: np.where(rng.random(n) < 0.7, 1.0, 2.0) * rng.lognormal(0.0, 0.05, n),
        math.exp(0.05 * 0.5659488),
        1.3 * math.exp(0.00125),
    ),
}
NUMBERS = [3, 4, 5, 6, 7, 8, 10, 13, 20, 30, 50, 100]
ROUNDS = 1000


def bounds(rounds, low=0.9295, high=0.9705):
    """The promise, and what chance adds to it in so many rounds (four standard deviations)."""
    slack = 4 * math.sqrt(0.05 * 0.95 / rounds)
    return low - slack, high + slack


def held(intervals, truth, n):
    """How often the truth was inside; None where no interval was given."""
    found = list(intervals)
    given = [one for one in found if one is not None]
    assert len(given) in (0, len(found)), f"n = {n}: an interval that appears by chance"
    return sum(low <= truth <= high for low, high in given) / len(given) if given else None


@pytest.mark.parametrize("n", NUMBERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_median_s_interval_holds_the_median(shape, n):
    draw, median, _ = SHAPES[shape]
    rng = np.random.default_rng(n)
    share = held((stats.median_interval(draw(rng, n)) for _ in range(ROUNDS)), median, n)
    low, high = bounds(ROUNDS)
    assert share is None if n < 5 else low <= share <= high


@pytest.mark.parametrize("n", NUMBERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_tax_s_interval_holds_the_tax(shape, n):
    draw, _, _ = SHAPES[shape]
    rng = np.random.default_rng(100 + n)
    rounds = 800
    found = (stats.tax(1.25 * draw(rng, n), draw(rng, n))[1] for _ in range(rounds))
    share = held(found, 0.25, n)
    low, high = bounds(rounds)
    assert share is None if n < 5 else low <= share <= high


@pytest.mark.parametrize("n", [8, 29, 30, 60, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mean_s_interval_holds_the_mean_from_30_on_and_is_not_given_before(shape, n):
    draw, _, mean = SHAPES[shape]
    rng = np.random.default_rng(200 + n)
    found = (stats.cost(draw(rng, n), np.ones(n)).ci95 for _ in range(ROUNDS))
    share = held(found, mean, n)
    low, high = bounds(ROUNDS)
    assert share is None if n < 30 else low <= share <= high


@pytest.mark.parametrize("together", [4, 8, 32])
@pytest.mark.parametrize("cohorts", [3, 5, 8, 12, 30])
@pytest.mark.parametrize("shared", [0.0, 0.4, 0.9], ids=lambda s: f"{s:.0%} shared")
def test_trials_that_ran_together_count_as_what_they_know(shared, cohorts, together):
    rng = np.random.default_rng([cohorts, together, int(100 * shared)])
    rounds = 500
    names = np.repeat(np.arange(cohorts), together)

    def draw():
        common = math.sqrt(shared) * rng.normal(size=(cohorts, 1))
        return np.exp(0.5 * (common + math.sqrt(1 - shared) * rng.normal(size=(cohorts, together)))).ravel()

    share = held((stats.median_interval(draw(), names) for _ in range(rounds)), 1.0, cohorts)
    ratios = held((stats.ratio(draw(), draw(), names, names)[1] for _ in range(rounds)), 1.0, cohorts)
    low, high = bounds(rounds)
    assert (share, ratios) == (None, None) if cohorts < 5 else low <= min(share, ratios) <= max(share, ratios) <= high


def test_as_single_samples_the_same_cohorts_would_have_too_narrow_an_interval():
    rng = np.random.default_rng(9)
    data = [np.exp(0.5 * np.repeat(rng.normal(size=12), 32)) for _ in range(300)]
    assert held(map(stats.median_interval, data), 1.0, 384) < 0.5


def test_failures_that_cost_time_are_in_the_interval_of_hours_per_success():
    rng = np.random.default_rng(11)
    truth = (0.8 * 1.0 + 0.2 * 5.0) / 0.8
    hits, given = 0, 0
    for _ in range(ROUNDS):
        ok = rng.random(100) < 0.8
        spent = np.where(ok, 1.0, 5.0) * rng.lognormal(-0.005, 0.1, 100)
        found = stats.cost(spent, ok).ci95
        given += found is not None
        hits += found is not None and found[0] <= truth <= found[1]
    low, high = bounds(ROUNDS)
    assert given == ROUNDS
    assert low <= hits / given <= high
