"""Costs that are learned: from priors, through outliers and failures, to what is really paid."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.core.errors import Misuse
from dutyfree.warm.cost import Estimate, LearnedCosts, Priors


def after(estimate, *seconds):
    for one in seconds:
        estimate = estimate.seen(one)
    return estimate


def test_without_observations_the_prior_is_the_answer():
    costs = LearnedCosts(Priors(stage_s=7, create_s=0.1, claim_s=0.2))
    assert costs.stage_s("k", "a") == pytest.approx(7)
    assert (costs.create_s("a"), costs.claim_s("a")) == (pytest.approx(0.1), pytest.approx(0.2))
    assert costs.pull_s("k", "a") == math.inf


def test_one_observation_outweighs_the_prior_and_twenty_forget_it():
    once = after(Estimate.of(8.0), 2.0).seconds
    assert 2.0 < once < 4.0
    assert after(Estimate.of(100.0), *[2.0] * 20).seconds == pytest.approx(2.0, rel=0.1)


def test_one_outlier_moves_the_estimate_by_a_bounded_factor():
    settled = after(Estimate.of(2.0), *[2.0] * 30)
    assert settled.seen(100_000.0).seconds < 1.1 * settled.seconds
    assert settled.seen(0.0).seconds > 0.9 * settled.seconds


def test_a_change_that_lasts_is_believed():
    settled = after(Estimate.of(2.0), *[2.0] * 30)
    assert after(settled, *[20.0] * 25).seconds == pytest.approx(20.0, rel=0.25)


def test_noise_ends_near_the_median():
    draw = random.Random(5)
    found = after(Estimate.of(1.0), *[10.0 * math.exp(draw.gauss(0, 0.3)) for _ in range(200)]).seconds
    assert 7.5 < found < 13.0


def test_a_failure_is_not_a_time_but_makes_success_dearer():
    settled = after(Estimate.of(10.0), *[10.0] * 20)
    quick = settled.failed(0.01)
    assert quick.mean == settled.mean
    assert quick.seconds > settled.seconds
    assert after(quick, *[10.0] * 40).seconds == pytest.approx(10.0, rel=0.02)


def test_a_failure_that_took_longer_than_expected_is_a_lower_bound():
    settled = after(Estimate.of(10.0), *[10.0] * 20)
    assert settled.failed(600.0).mean > settled.mean


def test_what_always_fails_is_dear_but_not_infinite():
    estimate = Estimate.of(1.0)
    for _ in range(1000):
        estimate = estimate.failed(0.5)
    assert 10 < estimate.seconds < math.inf


def test_a_machine_that_has_seen_nothing_borrows_from_the_others_and_then_learns_its_own():
    costs = LearnedCosts(Priors(stage_s=1.0))
    for _ in range(20):
        costs.seen("stage", 30.0, key="deps", node="slow")
    assert costs.stage_s("deps", "new") == pytest.approx(30.0, rel=0.1)
    for _ in range(20):
        costs.seen("stage", 3.0, key="deps", node="fast")
    assert costs.stage_s("deps", "fast") == pytest.approx(3.0, rel=0.1)
    assert costs.stage_s("deps", "slow") == pytest.approx(30.0, rel=0.1)
    assert costs.stage_s("other", "slow") == pytest.approx(1.0)


def test_pulls_are_possible_once_one_was_seen():
    costs = LearnedCosts()
    costs.seen("pull", 0.5, key="deps", node="a")
    assert costs.pull_s("deps", "b") < 10
    assert costs.pull_s("task", "b") == math.inf


def test_a_failed_pull_does_not_make_pulling_possible():
    costs = LearnedCosts()
    costs.failed("pull", 0.5, key="deps", node="a")
    assert costs.pull_s("deps", "a") == math.inf


def test_times_that_are_none_are_refused():
    with pytest.raises(Misuse, match="seconds"):
        LearnedCosts().seen("create", math.nan)
    with pytest.raises(Misuse, match="stage_s"):
        Priors(stage_s=-1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(min_value=0, max_value=1e9, allow_nan=False))))
def test_an_estimate_is_always_a_positive_finite_time(history):
    estimate = Estimate.of(1.0)
    for good, seconds in history:
        estimate = estimate.seen(seconds) if good else estimate.failed(seconds)
        assert 0 < estimate.seconds < math.inf
        assert 0 <= estimate.rate <= 1


@settings(deadline=None)
@given(
    st.lists(st.floats(min_value=0.001, max_value=1000), min_size=1, max_size=20),
    st.floats(min_value=0.001, max_value=1000),
    st.floats(min_value=1, max_value=100),
)
def test_a_longer_last_time_never_gives_a_smaller_estimate(history, last, factor):
    before = after(Estimate.of(1.0), *history)
    assert before.seen(last).seconds <= before.seen(last * factor).seconds * (1 + 1e-12)
