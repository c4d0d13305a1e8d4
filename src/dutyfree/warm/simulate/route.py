"""Which node a rollout is sent to: `nearest` and its baselines, on a simulated cluster's indexes.

The same choices as in `nearest.choose` and `baseline`; only that of a state with more than `Scenario.look` holders,
that many are looked at and not all.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dutyfree.core.errors import Misuse
from dutyfree.warm.simulate.cluster import Chain, Cluster

Route = Callable[[Cluster, Chain, float], int]
"""The node, for a rollout that asks for the state at that time."""

POLICIES = ("nearest", "exact-match", "least-loaded", "round-robin", "random")


def route(policy: str, seed: int) -> Route:
    """A policy by its name; those that remember something begin anew."""
    if policy == "nearest":
        return nearest
    if policy == "exact-match":
        return exact_match
    if policy == "least-loaded":
        return lambda cluster, _chain, _now_s: cluster.loads.least()
    if policy == "round-robin":
        return _RoundRobin()
    if policy == "random":
        draw = random.Random(seed)  # noqa: S311 - a choice, not a secret
        return lambda cluster, _chain, _now_s: draw.randrange(len(cluster.nodes))
    raise Misuse(f"must be one of {', '.join(POLICIES)}, not {policy!r}", field="policy")


class _RoundRobin:
    def __init__(self) -> None:
        self._turn = -1

    def __call__(self, cluster: Cluster, _chain: Chain, _now_s: float) -> int:
        self._turn = (self._turn + 1) % len(cluster.nodes)
        return self._turn


def nearest(cluster: Cluster, chain: Chain, now_s: float) -> int:
    """The node with the smallest expected completion time."""
    return expect_nearest(cluster, chain, now_s)[0]


def expect_nearest(cluster: Cluster, chain: Chain, now_s: float) -> tuple[int, float]:
    """That node, and the time.

    From the deepest state to the shallowest: once even a node without a queue could not be better, nothing that
    follows can.
    """
    scenario = cluster.scenario
    claim_s, create_s, look, wait_of = scenario.claim_s, scenario.create_s, scenario.look, cluster.wait_s
    left = cluster.left_s(chain)
    floor = cluster.floor_s(chain, left, now_s)
    node = cluster.loads.least()
    best_s = wait_of(node, now_s) + create_s + floor[0]
    for depth in range(len(chain), 0, -1):
        if min(claim_s, create_s) + floor[depth] > best_s:
            break
        state = chain[depth - 1]
        for other in cluster.idle_at[state].look(look):
            wait_s = wait_of(other, now_s)
            if wait_s + claim_s + left[depth] < best_s:
                node, best_s = other, wait_s + claim_s + left[depth]
                if not wait_s:
                    break
        if create_s + floor[depth] >= best_s:
            continue
        for other in cluster.layers_at[state].look(look):
            wait_s = max(wait_of(other, now_s), cluster.nodes[other].layers[state] - now_s)
            if wait_s + create_s + floor[depth] <= best_s:
                node, best_s = other, wait_s + create_s + floor[depth]
                if wait_s <= 0:
                    break
    return node, best_s


def exact_match(cluster: Cluster, chain: Chain, now_s: float) -> int:
    """Node that holds the wanted state, unless all stages on the least loaded node are done sooner."""
    scenario, state = cluster.scenario, chain[-1]
    node = cluster.loads.least()
    best_s = cluster.wait_s(node, now_s) + scenario.create_s + cluster.left_s(chain)[1]
    for other in cluster.idle_at[state].look(scenario.look):
        ready_s = cluster.wait_s(other, now_s) + scenario.claim_s
        if ready_s < best_s:
            node, best_s = other, ready_s
    for other in cluster.layers_at[state].look(scenario.look):
        ready_s = max(cluster.wait_s(other, now_s), cluster.nodes[other].layers[state] - now_s) + scenario.create_s
        if ready_s <= best_s:
            node, best_s = other, ready_s
    return node
