"""Events of a simulation, drawn once from the seed: the tree of states, and the requests.

Every policy gets the same draw, so they differ by what they chose and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dutyfree.warm.simulate.scenario import Scenario

_NOISE_DRAWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """A tree: each state has a parent, a cost and a size. Numbered from 0, level by level."""

    level: list[int]
    seconds: list[float]
    """Seconds from the parent to this state."""
    megabytes: list[float]
    chains: list[tuple[int, ...]]
    """States of each task, from the image on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Groups in the order in which they arrive, and the lengths of their rollouts."""

    states: States
    tasks: list[int]
    """Task of each group."""
    arrivals_s: list[float] | None
    """Arrival of each group; None: the next comes when one is done (`Scenario.in_flight`)."""
    runs_s: list[float]
    """Run time of each rollout, group by group."""
    noise: list[float]
    """Factors on the seconds of stages, used in turn."""

    def once_s(self, group: int) -> float:
        """Readiness if each state were built once and then were everywhere: its first group waits for it, and nobody else does.

        Whoever does not know of tasks before they come can hardly pay less.
        """
        built: set[int] = set()
        paid_s = 0.0
        for task in self.tasks:
            missing = set(self.states.chains[task]) - built
            paid_s += group * sum(self.states.seconds[state] for state in missing)
            built |= missing
        return paid_s


def draw(scenario: Scenario, seed: int) -> Workload:
    """The same for the same seed, on any machine with the same numpy."""
    tree, popular, times, runs, noise = (np.random.default_rng([seed, i]) for i in range(5))
    states = draw_states(scenario, tree)
    # Popularity is independent of which repository a task is from.
    rank = popular.permutation(scenario.tasks)
    tasks = rank[_zipf(popular, scenario.tasks, scenario.skew, scenario.groups)]
    arrivals = None
    if scenario.in_flight is None:
        mean_run_s = max(scenario.run_s * math.exp(scenario.run_spread**2 / 2), 1e-9)
        rate = scenario.load * scenario.nodes * scenario.slots / (mean_run_s * scenario.group)
        arrivals = np.cumsum(times.exponential(1 / rate, scenario.groups)).tolist()
    return Workload(
        states=states,
        tasks=tasks.tolist(),
        arrivals_s=arrivals,
        runs_s=_factors(runs, scenario.run_spread, scenario.rollouts, scenario.run_s).tolist(),
        noise=_factors(noise, scenario.noise, _NOISE_DRAWS).tolist(),
    )


def draw_states(scenario: Scenario, rng: np.random.Generator) -> States:
    """Levels as the stages say; each state's parent is drawn by the same skew, so some repositories have many tasks."""
    level: list[int] = []
    seconds: list[float] = []
    megabytes: list[float] = []
    chains: list[tuple[int, ...]] = [()]
    for depth, stage in enumerate(scenario.stages):
        last = depth == len(scenario.stages) - 1
        count = scenario.tasks if last else max(1, math.ceil(scenario.tasks / stage.tasks_per_state))
        parents = _zipf(rng, len(chains), scenario.skew, count).tolist()
        first = len(level)
        level += [depth] * count
        seconds += _factors(rng, stage.spread, count, stage.seconds).tolist()
        megabytes += [stage.megabytes] * count
        chains = [(*chains[parent], first + i) for i, parent in enumerate(parents)]
    return States(level=level, seconds=seconds, megabytes=megabytes, chains=chains)


def _zipf(rng: np.random.Generator, population: int, skew: float, count: int) -> NDArray[np.int64]:
    """Ranks from 0, the first the most likely."""
    weights = np.cumsum(np.arange(1, population + 1, dtype=float) ** -skew)
    ranks = np.searchsorted(weights, rng.random(count) * weights[-1], side="right")
    found: NDArray[np.int64] = np.minimum(ranks, population - 1).astype(np.int64)
    return found


def _factors(rng: np.random.Generator, spread: float, count: int, median: float = 1.0) -> NDArray[np.float64]:
    return median * np.exp(spread * rng.standard_normal(count))
