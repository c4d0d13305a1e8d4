"""The events of a simulation: rollouts arrive, are sent to a node, wait there, get ready, run, end.

Deterministic: events at the same time happen in the order in which they were caused.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from dutyfree.warm.simulate.cluster import Cluster, Count
from dutyfree.warm.simulate.route import Route, route
from dutyfree.warm.simulate.scenario import Scenario
from dutyfree.warm.simulate.workload import Workload

Progress = Callable[[int], None]
"""Told now and then how many rollouts are over."""

_OFTEN = 20_000


@dataclass(slots=True)
class Run:
    """Readiness that each rollout paid, in the order of their requests."""

    waits_s: list[float]
    """Seconds in a node's queue."""
    ready_s: list[float]
    """Seconds from the start to the wanted state: the readiness that was paid."""
    hits: int = 0
    """Rollouts that found the wanted state complete."""
    claims: int = 0
    """Of these and others: those that were given an idle sandbox."""
    makespan_s: float = 0.0
    count: Count = field(default_factory=Count)


class _Simulation:
    def __init__(
        self, scenario: Scenario, workload: Workload, policy: str, seed: int, progress: Progress | None
    ) -> None:
        self._scenario = scenario
        self._workload = workload
        self._cluster = Cluster(scenario, workload)
        self._route: Route = route(policy, seed)
        self._exact = policy == "exact-match"
        self._progress = progress
        self._ends: list[tuple[float, int, int, int]] = []
        """When a rollout ends: time, order, its number, its node."""
        self._asked_s = [0.0] * scenario.rollouts
        self._expected_s = [0.0] * scenario.rollouts
        self._left = [scenario.group] * scenario.groups
        self._next_group = 0
        self._run = Run(waits_s=[0.0] * scenario.rollouts, ready_s=[0.0] * scenario.rollouts)

    def run(self) -> Run:
        over, order = 0, 0
        arrivals, ends = self._workload.arrivals_s, self._ends
        if arrivals is None:
            for _ in range(min(self._scenario.in_flight or 1, self._scenario.groups)):
                self._arrive(0.0)
        while ends or self._next_group < self._scenario.groups:
            if arrivals is not None and self._next_group < len(arrivals):
                due_s = arrivals[self._next_group]
                if not ends or due_s <= ends[0][0]:
                    self._arrive(due_s)
                    continue
            time_s, order, rollout, node = heapq.heappop(ends)
            self._end(time_s, rollout, node)
            over += 1
            if self._progress is not None and over % _OFTEN == 0:
                self._progress(over)
        self._run.makespan_s = time_s if order else 0.0
        self._run.count = self._cluster.count
        return self._run

    def _arrive(self, now_s: float) -> None:
        group = self._next_group
        self._next_group += 1
        chain = self._workload.states.chains[self._workload.tasks[group]]
        size = self._scenario.group
        for rollout in range(group * size, group * size + size):
            self._asked_s[rollout] = now_s
            node = self._route(self._cluster, chain, now_s)
            self._cluster.loads.more(node)
            own = self._cluster.nodes[node]
            if len(own.ends_s) < self._scenario.slots:
                self._start(now_s, rollout, node)
            else:
                own.queue.append(rollout)

    def _start(self, now_s: float, rollout: int, node: int) -> None:
        chain = self._workload.states.chains[self._workload.tasks[rollout // self._scenario.group]]
        ready_s, hit, claimed = self._cluster.make_ready(node, chain, now_s, exact=self._exact)
        run = self._run
        run.waits_s[rollout] = now_s - self._asked_s[rollout]
        run.ready_s[rollout] = ready_s
        run.hits += hit
        run.claims += claimed
        expected_s = now_s + ready_s + self._scenario.run_s
        insort(self._cluster.nodes[node].ends_s, expected_s)
        self._expected_s[rollout] = expected_s
        end_s = now_s + ready_s + self._workload.runs_s[rollout] + self._scenario.reset_s
        heapq.heappush(self._ends, (end_s, rollout, rollout, node))

    def _end(self, now_s: float, rollout: int, node: int) -> None:
        own = self._cluster.nodes[node]
        del own.ends_s[bisect_left(own.ends_s, self._expected_s[rollout])]
        self._cluster.loads.less(node)
        group = rollout // self._scenario.group
        self._cluster.give_back(node, self._workload.states.chains[self._workload.tasks[group]][-1])
        if own.queue:
            self._start(now_s, own.queue.popleft(), node)
        self._left[group] -= 1
        if not self._left[group] and self._workload.arrivals_s is None and self._next_group < self._scenario.groups:
            self._arrive(now_s)


def simulate(
    scenario: Scenario, workload: Workload, policy: str, *, seed: int = 1, progress: Progress | None = None
) -> Run:
    """Run one policy to the end. `seed` is that of a policy that draws."""
    return _Simulation(scenario, workload, policy, seed, progress).run()
