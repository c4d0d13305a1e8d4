"""The choice of the nearest state: its arithmetic, and what holds for any pool, any nodes and any costs."""

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.core.errors import Misuse, Saturated
from dutyfree.warm.baseline import Random, RoundRobin, exact_match, least_loaded
from dutyfree.warm.nearest import (
    IdleSandbox,
    LayerSet,
    Node,
    Request,
    choose,
    distance,
    queue_wait_s,
    shared,
)


@dataclass(frozen=True)
class Table:
    """Costs that are known: one number per stage, one factor per node."""

    stages: dict
    create: float = 0.01
    claim: float = 0.001
    pull: float = math.inf

    def stage_s(self, key, node):
        return self.stages[key]

    def create_s(self, node):
        return self.create

    def claim_s(self, node):
        return self.claim

    def pull_s(self, key, node):
        return self.pull


COSTS = Table({"image": 20.0, "repo": 4.0, "deps": 30.0, "task": 1.0, "other": 2.0})
WANT = ("image", "repo", "deps", "task")
NODES = (Node(id="a"), Node(id="b"))


def pick(*, idle=(), layers=(), nodes=NODES, costs=COSTS):
    return choose(Request(want=WANT), idle, layers, list(nodes), costs)


def test_the_distance_is_the_sum_of_the_missing_stages():
    assert distance(WANT[:2], WANT, COSTS) == 31.0
    assert distance(WANT, WANT, COSTS) == 0.0
    assert distance((), WANT, COSTS) == 55.0


def test_a_sandbox_with_something_else_in_it_is_infinitely_far():
    assert distance(("image", "other"), WANT, COSTS) == math.inf
    assert distance((*WANT, "other"), WANT, COSTS) == math.inf
    assert shared(("image", "other"), WANT) == 1


def test_an_idle_sandbox_in_the_wanted_state_is_claimed():
    found = pick(
        idle=[IdleSandbox(id="near", state=WANT[:3], node="b"), IdleSandbox(id="there", state=WANT, node="b")],
        layers=[LayerSet(state=WANT, node="a")],
    )
    assert (found.how, found.sandbox, found.node, found.build) == ("idle", "there", "b", ())
    assert found.completion_s == COSTS.claim


def test_full_layers_win_over_an_idle_sandbox_that_lacks_a_stage():
    found = pick(idle=[IdleSandbox(id="near", state=WANT[:3], node="a")], layers=[LayerSet(state=WANT, node="b")])
    assert (found.how, found.node, found.have) == ("layers", "b", WANT)
    assert found.completion_s == COSTS.create


def test_layers_serve_any_state_they_begin_with():
    found = pick(layers=[LayerSet(state=("image", "repo", "other"), node="b")])
    assert (found.how, found.have, found.build) == ("layers", ("image", "repo"), ("deps", "task"))


def test_waiting_for_a_build_under_way_is_weighed_against_building_it_again():
    soon = [LayerSet(state=WANT, node="a", ready_in_s=10.0), LayerSet(state=WANT[:2], node="b")]
    assert pick(layers=soon).node == "a"
    late = [replace(soon[0], ready_in_s=40.0), soon[1]]
    assert pick(layers=late).node == "b"


def test_queueing_at_the_state_is_weighed_against_building_elsewhere():
    layers = [LayerSet(state=WANT, node="a"), LayerSet(state=WANT[:3], node="b")]
    short = [Node(id="a", wait_s=0.5), Node(id="b")]
    long = [Node(id="a", wait_s=1.5), Node(id="b")]
    assert pick(layers=layers, nodes=short).node == "a"
    assert pick(layers=layers, nodes=long).node == "b"


def test_a_layer_is_pulled_where_that_is_cheaper_than_to_build_it():
    layers = [LayerSet(state=WANT, node="a"), LayerSet(state=WANT[:1], node="b")]
    nodes = [Node(id="a", wait_s=100.0), Node(id="b")]
    found = pick(layers=layers, nodes=nodes, costs=replace(COSTS, pull=3.0))
    assert (found.node, found.pull, found.build) == ("b", ("repo", "deps"), ("task",))
    assert found.completion_s == pytest.approx(3.0 + 3.0 + 1.0 + COSTS.create)


def test_among_equals_the_least_loaded_node_is_taken_then_the_first_by_name():
    assert pick(nodes=[Node(id="a", load=2), Node(id="c", load=1), Node(id="b", load=1)]).node == "b"


def test_sandboxes_of_nodes_that_are_not_offered_are_passed_over():
    assert pick(idle=[IdleSandbox(id="gone", state=WANT, node="z")]).how == "node"


def test_no_node_is_misuse_and_no_room_is_saturation():
    with pytest.raises(Misuse, match="nodes"):
        pick(nodes=[])
    with pytest.raises(Saturated):
        pick(nodes=[Node(id="a", wait_s=math.inf)])
    with pytest.raises(Misuse, match="want"):
        Request(want=())


def test_a_queue_costs_nothing_until_the_slots_are_full_and_then_the_next_ends():
    assert queue_wait_s(slots=4, ends_in_s=[9, 4, 5], queued=0, run_s=10) == 0
    assert queue_wait_s(slots=4, ends_in_s=[19, 4, 15, 17], queued=0, run_s=10) == 4
    assert queue_wait_s(slots=4, ends_in_s=[19, 4, 15, 17], queued=3, run_s=10) == 19
    assert queue_wait_s(slots=4, ends_in_s=[19, 4, 15, 17], queued=4, run_s=10) == 14


def test_what_is_overdue_is_not_expected_at_once():
    assert queue_wait_s(slots=2, ends_in_s=[-3, -1], queued=0, run_s=10) == 5


def test_round_robin_takes_the_nodes_in_turn_and_starts_there_as_well_as_it_can():
    policy = RoundRobin()
    layers = [LayerSet(state=WANT[:3], node="b")]
    found = [policy(Request(want=WANT), [], layers, [Node(id="b"), Node(id="a")], COSTS) for _ in range(4)]
    assert [one.node for one in found] == ["a", "b", "a", "b"]
    assert [one.how for one in found[:2]] == ["node", "layers"]


def test_random_is_the_same_for_the_same_seed():
    nodes = [Node(id=str(i)) for i in range(50)]

    def draw(seed):
        policy = Random(seed)
        return [policy(Request(want=WANT), [], [], nodes, COSTS).node for _ in range(20)]

    assert draw(1) == draw(1) != draw(2)


def test_exact_match_ignores_every_state_but_the_wanted_one():
    near = [IdleSandbox(id="near", state=WANT[:3], node="a")]
    layers = [LayerSet(state=WANT[:3], node="a")]
    missed = exact_match(Request(want=WANT), near, layers, [Node(id="a")], COSTS)
    assert (missed.have, missed.build) == (WANT[:1], WANT[1:])
    there = exact_match(Request(want=WANT), [replace(near[0], state=WANT)], layers, [Node(id="a")], COSTS)
    assert there.how == "idle"


# ---- what holds for anything

KEYS = ("i", "j", "r", "s", "d", "t")
seconds = st.floats(min_value=0, max_value=100, allow_nan=False)
states = st.lists(st.sampled_from(KEYS), min_size=1, max_size=4).map(tuple)
names = st.sampled_from(["a", "b", "c"])
idles = st.lists(
    st.builds(IdleSandbox, id=st.text("xyz", min_size=1, max_size=4), state=states, node=names), max_size=6
)
sets = st.lists(st.builds(LayerSet, state=states, node=names, ready_in_s=st.one_of(st.just(0.0), seconds)), max_size=6)
node_lists = st.lists(
    st.builds(Node, id=names, wait_s=seconds, load=st.integers(0, 5)), min_size=1, max_size=3, unique_by=lambda n: n.id
)
tables = st.builds(
    Table,
    stages=st.fixed_dictionaries(dict.fromkeys(KEYS, seconds)),
    create=seconds,
    claim=seconds,
    pull=st.one_of(st.just(math.inf), seconds),
)


def close(value):
    """Sums in another order differ in the last bit."""
    return value * (1 + 1e-9) + 1e-9


@settings(max_examples=100, deadline=None)
@given(states, idles, sets, node_lists, tables)
def test_nearest_is_never_worse_than_any_baseline_in_its_own_model(want, idle, layers, nodes, costs):
    best = choose(Request(want=want), idle, layers, nodes, costs).completion_s
    for policy in (exact_match, least_loaded, RoundRobin(), Random(7)):
        assert best <= close(policy(Request(want=want), idle, layers, nodes, costs).completion_s)


@settings(max_examples=100, deadline=None)
@given(states, idles, sets, node_lists, tables, st.floats(min_value=1, max_value=10), st.sampled_from(KEYS))
def test_higher_costs_never_bring_an_earlier_completion(want, idle, layers, nodes, costs, factor, key):
    before = choose(Request(want=want), idle, layers, nodes, costs).completion_s
    dearer = [
        replace(costs, stages={**costs.stages, key: costs.stages[key] * factor}),
        replace(costs, create=costs.create * factor),
        replace(costs, claim=costs.claim * factor),
        replace(costs, pull=costs.pull * factor if costs.pull else 0.0),
    ]
    for other in dearer:
        assert before <= close(choose(Request(want=want), idle, layers, nodes, other).completion_s)


@settings(max_examples=100, deadline=None)
@given(states, idles, sets, node_lists, tables, st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_anything(want, idle, layers, nodes, costs, shuffler):
    first = choose(Request(want=want), idle, layers, nodes, costs)
    for one in (idle, layers, nodes):
        shuffler.shuffle(one)
    assert choose(Request(want=want), idle, layers, nodes, costs) == first


@settings(max_examples=100, deadline=None)
@given(states, idles, sets, node_lists, tables)
def test_a_choice_leads_to_the_wanted_state_and_says_what_it_costs(want, idle, layers, nodes, costs):
    found = choose(Request(want=want), idle, layers, nodes, costs)
    assert found.have + found.build == want
    assert found.have[len(found.have) - len(found.pull) :] == found.pull
    start = costs.claim if found.how == "idle" else costs.create
    paid = start + sum(costs.stages[key] for key in found.build) + (len(found.pull) * costs.pull if found.pull else 0)
    assert found.ready_s == pytest.approx(paid)


@settings(max_examples=100, deadline=None)
@given(states, idles, sets, node_lists, tables, idles)
def test_more_idle_sandboxes_never_hurt(want, idle, layers, nodes, costs, more):
    request = Request(want=want)
    fewer = choose(request, idle, layers, nodes, costs).completion_s
    assert choose(request, [*idle, *more], layers, nodes, costs).completion_s <= fewer
