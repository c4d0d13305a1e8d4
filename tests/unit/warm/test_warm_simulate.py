"""The simulator: known answers on small clusters, the same choices as the pure functions, the same run for a seed."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.core.errors import Misuse
from dutyfree.warm.nearest import IdleSandbox, LayerSet, Node, Request, choose, queue_wait_s
from dutyfree.warm.simulate.cluster import Cluster
from dutyfree.warm.simulate.engine import simulate
from dutyfree.warm.simulate.index import Holders, Loads
from dutyfree.warm.simulate.outcome import document, row
from dutyfree.warm.simulate.route import POLICIES, expect_nearest
from dutyfree.warm.simulate.scenario import Scenario, Stage, from_json
from dutyfree.warm.simulate.workload import States, Workload, draw

PLAIN = (Stage(name="image", seconds=8.0, spread=0), Stage(name="task", seconds=2.0, spread=0))
SMALL = Scenario(
    nodes=2, slots=1, tasks=2, groups=3, group=1, in_flight=1, run_s=10.0, run_spread=0, noise=0,
    create_s=0.5, claim_s=0.25, reset_s=0.0, idle=1, stages=PLAIN,
)  # fmt: skip
TREE = States(level=[0, 1, 1], seconds=[8.0, 2.0, 2.0], megabytes=[10.0] * 3, chains=[(0, 1), (0, 2)])


def work(scenario, tasks, arrivals=None):
    return Workload(
        states=TREE, tasks=tasks, arrivals_s=arrivals, runs_s=[scenario.run_s] * scenario.rollouts, noise=[1.0]
    )


def test_each_rollout_pays_what_its_node_misses():
    run = simulate(SMALL, work(SMALL, [0, 0, 1]), "nearest")
    assert run.ready_s == [0.5 + 10, 0.25, 0.5 + 2]
    assert (run.hits, run.claims, run.count.builds) == (1, 1, 3)
    assert run.makespan_s == pytest.approx(sum(run.ready_s) + 3 * 10)


def test_round_robin_pays_again_on_every_node():
    run = simulate(SMALL, work(SMALL, [0, 0, 1]), "round-robin")
    assert run.ready_s == [0.5 + 10, 0.5 + 10, 0.5 + 2]


def test_exact_match_builds_all_but_the_image_for_a_state_that_is_near():
    scenario = replace(SMALL, nodes=1)
    run = simulate(scenario, work(scenario, [0, 1, 1]), "exact-match")
    assert run.ready_s == [0.5 + 10, 0.5 + 2, 0.25]


def test_a_stage_is_built_once_on_a_node_however_many_ask():
    scenario = replace(SMALL, nodes=1, slots=8, groups=1, group=8)
    run = simulate(scenario, work(scenario, [0]), "random")
    assert run.count.builds == 2
    assert run.ready_s == [10.5] + [10.5 + 0.5] * 7


def test_a_full_node_makes_rollouts_wait_in_order():
    scenario = replace(SMALL, nodes=1, groups=1, group=3)
    run = simulate(scenario, work(scenario, [0]), "least-loaded")
    assert run.waits_s == [0.0, 20.5, 30.75]


def test_arrivals_by_the_clock_are_kept():
    run = simulate(SMALL, work(SMALL, [0, 0, 0], arrivals=[0.0, 100.0, 200.0]), "nearest")
    assert run.makespan_s == pytest.approx(200 + 0.25 + 10)
    assert run.waits_s == [0.0, 0.0, 0.0]


def test_layers_beyond_the_cache_go_the_least_recently_used_first_and_leaves_before_roots():
    scenario = replace(SMALL, nodes=1, idle=0, groups=3, cache_gb=0.02)
    run = simulate(scenario, work(scenario, [0, 1, 0]), "nearest")
    assert run.ready_s == [10.5, 2.5, 2.5]


def test_layers_are_pulled_where_that_is_quicker():
    scenario = replace(SMALL, groups=2, idle=0, pull_mb_s=10.0)
    run = simulate(scenario, work(scenario, [0, 0], arrivals=[0.0, 11.0]), "round-robin")
    assert run.ready_s == [10.5, 0.5 + 1 + 1]
    assert run.count.pulls == 2


def test_the_same_seed_gives_the_same_document_and_another_seed_another():
    scenario = Scenario(nodes=8, tasks=40, groups=60, group=4)

    def made(seed):
        workload = draw(scenario, seed)
        rows = [row(p, simulate(scenario, workload, p, seed=seed)) for p in POLICIES]
        return document(scenario, seed, workload.once_s(scenario.group), rows)

    assert made(3) == made(3)
    assert made(3) != made(4)


@pytest.mark.parametrize("seed", range(3))
def test_nearest_pays_at_least_five_times_less_readiness_than_round_robin_on_64_nodes(seed):
    scenario = Scenario()
    assert (scenario.nodes, scenario.tasks, scenario.group, scenario.skew) == (64, 500, 8, 1.0)
    workload = draw(scenario, seed)
    paid = {policy: sum(simulate(scenario, workload, policy).ready_s) for policy in ("nearest", "round-robin")}
    assert paid["round-robin"] >= 5 * paid["nearest"]


def test_states_built_once_are_paid_for_by_the_first_group_that_asks():
    assert work(SMALL, [0, 0, 1, 1, 0]).once_s(group=4) == 4 * (8 + 2 + 2)


def test_popularity_follows_the_skew():
    scenario = Scenario(tasks=100, groups=20_000, group=1, skew=1.0)
    tasks = draw(scenario, 1).tasks
    counts = sorted((tasks.count(task) for task in set(tasks)), reverse=True)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.25)
    even = draw(replace(scenario, skew=0.0), 1).tasks
    assert max(even.count(task) for task in set(even)) < 300


class SameCosts:
    """The cluster's own beliefs, as the pure function wants them."""

    def __init__(self, cluster):
        self._cluster = cluster

    def stage_s(self, key, node):
        return self._cluster.expected_s[int(key)]

    def create_s(self, node):
        return self._cluster.scenario.create_s

    def claim_s(self, node):
        return self._cluster.scenario.claim_s

    def pull_s(self, key, node):
        return math.inf


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_the_indexed_choice_is_the_pure_one(seed):
    """Drive a cluster into some state by the engine's own steps, then ask both."""
    rng = random.Random(seed)
    scenario = Scenario(nodes=5, slots=2, tasks=12, groups=1, group=1, idle=2, cache_gb=4.0, run_s=5.0)
    workload = draw(scenario, seed)
    cluster = Cluster(scenario, workload)
    now_s = 0.0
    for _ in range(rng.randrange(25)):
        node, chain = rng.randrange(5), rng.choice(workload.states.chains)
        now_s += rng.random() * 5
        own = cluster.nodes[node]
        if len(own.ends_s) < scenario.slots and rng.random() < 0.6:
            cluster.loads.more(node)
            own.ends_s = sorted([*own.ends_s, now_s + rng.random() * 20])
        cluster.make_ready(node, chain, now_s, exact=False)
        if rng.random() < 0.5:
            cluster.give_back(node, chain[-1])
    want = rng.choice(workload.states.chains)
    _, expected_s = expect_nearest(cluster, want, now_s)
    assert expected_s == pytest.approx(pure(cluster, want, now_s).completion_s)


def pure(cluster, want, now_s):
    prefix = {chain[: i + 1][-1]: chain[: i + 1] for chain in cluster._states.chains for i in range(len(chain))}
    keys = {state: tuple(map(str, chain)) for state, chain in prefix.items()}
    idle, layers, nodes = [], [], []
    for name, own in enumerate(cluster.nodes):
        ends = [end - now_s for end in own.ends_s]
        wait_s = queue_wait_s(slots=cluster.scenario.slots, ends_in_s=ends, queued=len(own.queue), run_s=5.0)
        nodes.append(Node(id=str(name), wait_s=wait_s, load=cluster.loads.load[name]))
        idle += [IdleSandbox(id=f"{name}.{state}", state=keys[state], node=str(name)) for state in own.idle]
        layers += [
            LayerSet(state=keys[state], node=str(name), ready_in_s=max(0.0, at - now_s))
            for state, at in own.layers.items()
        ]
    return choose(Request(want=tuple(map(str, want))), idle, layers, nodes, SameCosts(cluster))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=60))
def test_the_least_loaded_node_is_the_one_a_scan_finds(steps):
    loads = Loads(7)
    for more, node in steps:
        if more:
            loads.more(node)
        elif loads.load[node]:
            loads.less(node)
        assert loads.load[loads.least()] == min(loads.load)


def test_a_walk_over_holders_sees_all_if_they_are_few_and_begins_elsewhere_if_they_are_many():
    holders = Holders()
    for node in range(10):
        holders.add(node)
    holders.remove(3)
    assert set(holders.look(9)) == set(range(10)) - {3}
    walks = [tuple(holders.look(4)) for _ in range(9)]
    assert len(set(walks)) == 9
    assert all(len(set(walk)) == 4 for walk in walks)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": 2.5}, "nodes"),
        ({"machines": 3}, "machines"),
        ({"stages": []}, "stages"),
        ({"stages": [{"name": "x"}]}, "seconds"),
        ({"stages": [{"name": "x", "seconds": -1}]}, "seconds"),
        ({"load": "much"}, "load"),
        ({"groups": 10_000_000, "group": 8}, "group"),
        ([], "scenario"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused_by_field(data, field):
    with pytest.raises(Misuse, match=field):
        from_json(data)


def test_a_scenario_survives_json():
    scenario = Scenario(nodes=3, stages=PLAIN)
    again = scenario.to_json()
    again["stages"] = list(again["stages"])
    assert from_json(again) == scenario
