"""The simulated nodes: what they hold, what they have to do, and what it takes to get a sandbox ready there.

The arithmetic is that of `nearest`, on numbered states and nodes that are all alike; a test holds the two together.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from dutyfree.warm.cost import Estimate
from dutyfree.warm.simulate.index import Holders, Loads
from dutyfree.warm.simulate.scenario import Scenario
from dutyfree.warm.simulate.workload import Workload

Chain = tuple[int, ...]


@dataclass(slots=True)
class Count:
    """Sums over all rollouts."""

    builds: int = 0
    built_s: float = 0.0
    pulls: int = 0


class NodeState:
    """Content of one node: idle sandboxes and layers, least recently used first, and its queue."""

    __slots__ = ("ends_s", "idle", "idle_count", "layers", "megabytes", "queue")

    def __init__(self) -> None:
        self.ends_s: list[float] = []
        """When each of those that run is expected to end, soonest first."""
        self.queue: deque[int] = deque()
        self.idle: OrderedDict[int, int] = OrderedDict()
        """How many sandboxes in each state."""
        self.idle_count = 0
        self.layers: OrderedDict[int, float] = OrderedDict()
        """When each is, or will be, complete. A layer never stands before those it lies on, so it goes before them."""
        self.megabytes = 0.0


class Cluster:
    """All nodes, with indexes over what they hold."""

    def __init__(self, scenario: Scenario, workload: Workload) -> None:
        self.scenario = scenario
        self.loads = Loads(scenario.nodes)
        self.nodes = [NodeState() for _ in range(scenario.nodes)]
        self.idle_at = [Holders() for _ in workload.states.level]
        self.layers_at = [Holders() for _ in workload.states.level]
        self.count = Count()
        self._states = workload.states
        priors = [Estimate.of(stage.seconds) for stage in scenario.stages]
        self._known = [priors[level] for level in workload.states.level]
        self.expected_s = [known.seconds for known in self._known]
        """What each state's stage is believed to take: learned as `LearnedCosts` does, for all nodes together."""
        self._noise = workload.noise
        self._drawn = 0
        self._cache_mb = scenario.cache_gb * 1000

    def wait_s(self, node: int, now_s: float) -> float:
        """Expected wait of a rollout that is sent there now: `nearest.queue_wait_s`, without sorting again."""
        own, slots = self.nodes[node], self.scenario.slots
        if len(own.ends_s) < slots:
            return 0.0
        rounds, place = divmod(len(own.queue), slots)
        run_s = self.scenario.run_s
        return max(own.ends_s[place] - now_s, (place + 1) * run_s / slots) + rounds * run_s

    def left_s(self, chain: Chain) -> list[float]:
        """Expected seconds of all stages from each depth on; the last, for depth `len(chain)`, is 0."""
        left = [0.0] * (len(chain) + 1)
        for depth in range(len(chain) - 1, -1, -1):
            left[depth] = left[depth + 1] + self.expected_s[chain[depth]]
        return left

    def floor_s(self, chain: Chain, left: Sequence[float], now_s: float) -> Sequence[float]:
        """The same, where a layer that some node has complete may be pulled instead."""
        if self.scenario.pull_mb_s is None:
            return left
        floor = list(left)
        able = len(chain)
        while able and not self._pullable(chain[able - 1], now_s):
            able -= 1
        for depth in range(able - 1, -1, -1):
            floor[depth] = min(left[depth], self._pull_s(chain[depth]) + floor[depth + 1])
        return floor

    def _pullable(self, state: int, now_s: float) -> bool:
        look = self.layers_at[state].look(self.scenario.look)
        return any(self.nodes[node].layers[state] <= now_s for node in look)

    def _pull_s(self, state: int) -> float:
        return self._states.megabytes[state] / (self.scenario.pull_mb_s or math.inf)

    def make_ready(self, node: int, chain: Chain, now_s: float, *, exact: bool) -> tuple[float, bool, bool]:
        """Get a sandbox into the state by the way that is expected to be the quickest on this node.

        Seconds paid; whether nothing was missing; whether an idle sandbox was claimed. `exact`: only the wanted state
        itself counts, and the image.
        """
        own, scenario, full = self.nodes[node], self.scenario, len(chain)
        left = self.left_s(chain)
        floor = self.floor_s(chain, left, now_s)
        best_s, depth, claimed, wait_s = scenario.create_s + floor[0], 0, False, 0.0
        for at in range(full, 0, -1):
            if exact and 1 < at < full:
                continue
            state = chain[at - 1]
            if state in own.idle and not (exact and at < full) and scenario.claim_s + left[at] <= best_s:
                best_s, depth, claimed, wait_s = scenario.claim_s + left[at], at, True, 0.0
            if state in own.layers:
                # A stage is built once on a node: who comes while it is being built waits, and does not build it again.
                until_s = max(0.0, own.layers[state] - now_s)
                if not claimed or until_s + scenario.create_s + floor[at] < best_s:
                    depth, claimed, wait_s = at, False, until_s
                break
        if claimed:
            self._take_idle(node, chain[depth - 1])
        end_s = now_s + wait_s + (scenario.claim_s if claimed else scenario.create_s)
        end_s = self._complete(node, chain, depth, end_s, left, left if claimed else floor)
        return end_s - now_s, depth == full and wait_s == 0, claimed

    def _complete(
        self, node: int, chain: Chain, depth: int, time_s: float, left: Sequence[float], floor: Sequence[float]
    ) -> float:
        """Pull and build what is missing, keep the layers; when it is done."""
        own = self.nodes[node]
        pulling = True
        for at in range(depth, len(chain)):
            state = chain[at]
            pulling = pulling and floor[at] < left[at]
            time_s += self._pull(state) if pulling else self._build(state)
            if time_s < own.layers.get(state, math.inf):
                self._store(node, state, time_s)
        for state in reversed(chain):
            if state in own.layers:
                own.layers.move_to_end(state)
        while own.megabytes > self._cache_mb and len(own.layers) > len(chain):
            state, _ = own.layers.popitem(last=False)
            own.megabytes -= self._states.megabytes[state]
            self.layers_at[state].remove(node)
        return time_s

    def _pull(self, state: int) -> float:
        self.count.pulls += 1
        return self._pull_s(state)

    def _build(self, state: int) -> float:
        seconds = self._states.seconds[state] * self._noise[self._drawn % len(self._noise)]
        self._drawn += 1
        self.count.builds += 1
        self.count.built_s += seconds
        self._known[state] = self._known[state].seen(seconds)
        self.expected_s[state] = self._known[state].seconds
        return seconds

    def _store(self, node: int, state: int, time_s: float) -> None:
        own = self.nodes[node]
        if state not in own.layers:
            own.megabytes += self._states.megabytes[state]
            self.layers_at[state].add(node)
        own.layers[state] = time_s

    def _take_idle(self, node: int, state: int) -> None:
        own = self.nodes[node]
        own.idle_count -= 1
        if own.idle[state] > 1:
            own.idle[state] -= 1
        else:
            del own.idle[state]
            self.idle_at[state].remove(node)

    def give_back(self, node: int, state: int) -> None:
        """A rollout is over and its sandbox has been reset: it is idle in the state it began with."""
        own = self.nodes[node]
        if not self.scenario.idle:
            return
        own.idle[state] = own.idle.get(state, 0) + 1
        own.idle.move_to_end(state)
        own.idle_count += 1
        self.idle_at[state].add(node)
        while own.idle_count > self.scenario.idle:
            self._take_idle(node, next(iter(own.idle)))
