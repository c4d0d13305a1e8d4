"""Projection: the study's arithmetic, and what is made of measured curves."""

import pytest

from dutyfree.meter.projection import Curve, compare, rank_agreement, ranking, tails, what_ifs, worker_hours


def curve(name, points, fixed_s=0.0, samples=(1.0,)):
    return Curve(name=name, points=tuple(points), fixed_s=fixed_s, samples=tuple(samples))


STEEP = curve("steep", [(10, 1.0), (50, 5.0), (150, 15.0)], fixed_s=0.0)
FLAT = curve("flat", [(10, 9.5), (50, 10.0), (150, 11.25)], fixed_s=9.0)


def test_what_ifs_are_those_of_the_study():
    assert [round(hours) for _, hours in what_ifs()] == [278, 417, 4167]


def test_worker_hours_of_the_study():
    assert round(worker_hours(1_000_000, 23.382)) == 6_495
    assert round(worker_hours(1_000_000, 42.5196)) == 11_811


@pytest.mark.parametrize(("steps", "seconds"), [(10, 1.0), (30, 3.0), (150, 15.0), (300, 30.0), (5, 0.5)])
def test_curves_pass_through_what_was_measured_and_continue_straight(steps, seconds):
    assert STEEP.seconds(steps) == pytest.approx(seconds)


def test_lengths_beyond_the_measured_ones_are_marked():
    assert STEEP.extrapolated(300)
    assert not STEEP.extrapolated(150)


def test_reuse_pays_fixed_costs_once():
    assert FLAT.seconds(150, reuse=10) == pytest.approx(11.25 - 9.0 * 0.9)


def test_the_ranking_changes_with_length_where_curves_cross():
    assert ranking([STEEP, FLAT], 50) == ["steep", "flat"]
    assert ranking([STEEP, FLAT], 150) == ["flat", "steep"]
    assert rank_agreement([STEEP, FLAT], 50) == -1
    assert rank_agreement([STEEP, FLAT], 300) == 1


def test_a_single_length_is_scaled():
    assert curve("one", [(50, 5.0)]).seconds(100) == pytest.approx(10.0)


def test_a_batch_of_equal_rollouts_waits_for_nobody():
    assert all(tail.waste == pytest.approx(0) for tail in tails([2.0] * 20))


def test_larger_batches_wait_longer_for_a_rare_slow_rollout():
    found = tails([1.0] * 99 + [10.0], batches=(1, 8, 128))
    assert found[0].batch_s < found[1].batch_s < found[2].batch_s
    # The chance that a batch of 128 holds the slow one is 1 - 0.99^128 = 0.724.
    assert found[2].batch_s == pytest.approx(1 + 9 * (1 - 0.99**128), rel=0.05)


def test_an_order_is_told_with_its_interval_and_equals_show_no_difference():
    a = curve("a", [(150, 1.0)], samples=[1.0, 1.1, 0.9] * 10)
    b = curve("b", [(150, 2.0)], samples=[2.0, 2.1, 1.9] * 10)
    assert compare(a, b).startswith("2.00x [")
    assert compare(a, a) == "no difference seen"


def test_two_trials_are_certain_of_nothing():
    a = curve("a", [(150, 1.0)], samples=[1.0, 1.001])
    b = curve("b", [(150, 9.0)], samples=[9.0, 9.001])
    assert compare(a, b) == "not known from 2 trials (needs 8)"
