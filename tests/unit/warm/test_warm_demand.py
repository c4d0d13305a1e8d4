"""How many should be ready, from who asked when. The clock is the test's."""

from dutyfree.warm.demand import HALF_LIFE_S, Demand


def asked(*times_s):
    demand = Demand()
    for time_s in times_s:
        demand.note(time_s)
    return demand


def test_nobody_asked_so_nothing_is_wanted():
    assert Demand().wanted(100.0, 1.0) == 0


def test_one_request_keeps_one_ready_for_a_while():
    demand = asked(0.0)
    assert demand.wanted(1.0, 0.01) == 1
    assert demand.wanted(3 * HALF_LIFE_S, 0.01) == 0


def test_a_group_that_came_at_once_is_expected_again():
    demand = asked(*[0.001 * i for i in range(16)])
    assert demand.wanted(1.0, 0.001) == 16
    assert 4 <= demand.wanted(2 * HALF_LIFE_S, 0.001) <= 5


def test_a_steady_rate_wants_what_arrives_while_one_is_made():
    demand = asked(*[0.5 * i for i in range(1000)])
    assert 1.8 < demand.rate(500.0) < 2.2
    assert demand.wanted(500.0, 0.001) == 1
    assert 36 <= demand.wanted(500.0, 10.0) <= 44


def test_a_rate_that_fell_is_followed():
    demand = asked(*[0.5 * i for i in range(1000)])
    assert demand.rate(500.0 + HALF_LIFE_S) < 0.6 * demand.rate(500.0)
