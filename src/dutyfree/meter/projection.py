"""The tax at training scale: worker-hours, sensitivity, ranking, what-ifs, and the long tail of batches.

    worker_hours(s, N) = N * T_s(150) / 3600

T_s is the time paid for one success: the mean over everything that ran, failures included, since
hours add up and medians do not. It is measured at a few lengths. Between them it is interpolated,
beyond them continued with the last slope, and said to be so. Arithmetic only: what it rests on is in `Curve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from dutyfree.meter.stats import Interval, ratio, verdict
from dutyfree.meter.summary import INSTRUMENT, Result, over

HOUR = 3600.0
STEPS = 150
TRAJECTORIES = (10_000, 100_000, 1_000_000, 10_000_000)
LENGTHS = (50, 100, 150, 200, 250, 300)
REUSES = (1, 10, 100)
BATCHES = (8, 32, 128, 512)

FEW = 8
"""Trials below which nothing is concluded from a comparison."""

TIERS = ("T0", "T1", "T2", "trace")
"""Whose trials are single rollouts."""

FIXED = ("create", "ready", "setup", "destroy")
"""Components that a sandbox pays once, however many rollouts use it."""

WHAT_IFS = (
    ("1 s per rollout", 1.0, 0.0),
    ("10 ms per action", 0.0, 0.010),
    ("100 ms per action", 0.0, 0.100),
)


def worker_hours(trajectories: float, seconds: float) -> float:
    """Hours of one worker for that many trajectories."""
    return trajectories * seconds / HOUR


def what_ifs(trajectories: int = 1_000_000, steps: int = STEPS) -> list[tuple[str, float]]:
    """Hours that small delays cost: the reason to measure at all."""
    return [(name, worker_hours(trajectories, once + each * steps)) for name, once, each in WHAT_IFS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One substrate's rollout time as a function of its length, on one tier."""

    name: str
    points: tuple[tuple[int, float], ...]
    """Measured: steps and mean seconds per success, rising in steps."""
    fixed_s: float
    """What a fresh sandbox costs: create, ready, set-up, destroy; at the longest trajectory."""
    samples: tuple[float, ...]
    """Seconds of single rollouts at the longest length."""
    interval: Interval | None = None
    """Interval of the seconds at the longest length."""
    result: Result | None = None
    """Result at the longest length."""
    n: int = 0
    """Trials at the longest length."""

    @property
    def longest(self) -> int:
        """The longest length that was measured."""
        return self.points[-1][0]

    def seconds(self, steps: float, reuse: int = 1) -> float:
        """Mean rollout time at this length, if each sandbox serves `reuse` rollouts."""
        xs, ys = zip(*self.points, strict=True)
        if steps <= xs[-1] and steps >= xs[0]:
            value = float(np.interp(steps, xs, ys))
        elif len(xs) == 1:
            value = ys[0] * steps / xs[0]
        else:
            (x0, y0), (x1, y1) = self.points[-2:] if steps > xs[-1] else self.points[:2]
            value = y0 + (y1 - y0) * (steps - x0) / (x1 - x0)
        return value - self.fixed_s * (1 - 1 / reuse)

    def extrapolated(self, steps: float) -> bool:
        """The length is outside of what was measured."""
        return not self.points[0][0] <= steps <= self.longest


def curves(found: Sequence[Result], tier: str, *, parallel: int = 1) -> list[Curve]:
    """The substrates that have trajectories on this tier, fastest (at the longest length) first."""
    if tier not in TIERS:
        return []
    groups: dict[str, list[Result]] = {}
    for result in found:
        key = result.key
        if (
            key.tier == tier
            and key.steps
            and key.parallel == parallel
            and result.cost
            and not result.emulated
            and key.substrate != INSTRUMENT
        ):
            groups.setdefault(result.title, []).append(result)
    made = [_curve(name, sorted(rows, key=lambda r: r.key.steps)) for name, rows in groups.items()]
    return sorted(made, key=lambda curve: curve.points[-1][1])


def _curve(name: str, rows: list[Result]) -> Curve:
    last = rows[-1]
    return Curve(
        name=name,
        points=tuple((r.key.steps, r.cost.seconds) for r in rows if r.cost),
        fixed_s=sum(last.decomposition[part] for part in FIXED),
        samples=last.times,
        interval=last.cost.ci95 if last.cost else None,
        n=last.n,
        result=last,
    )


def ranking(lines: Sequence[Curve], steps: float, reuse: int = 1) -> list[str]:
    """Names, fastest first."""
    return [curve.name for curve in sorted(lines, key=lambda c: c.seconds(steps, reuse))]


def rank_agreement(lines: Sequence[Curve], steps: float, reuse: int = 1) -> float:
    """Kendall's tau between the ranking here and the one at 150 steps, fresh sandboxes; 1 = the same order."""
    if len(lines) < 2:
        return 1.0
    tau = stats.kendalltau([c.seconds(STEPS) for c in lines], [c.seconds(steps, reuse) for c in lines])
    return float(tau.statistic)


def compare(faster: Curve, slower: Curve) -> str:
    """Say how sure the order of two is, from the interval of the ratio of their medians; too few trials settle nothing."""
    if min(len(faster.samples), len(slower.samples)) < FEW:
        return f"not known from {min(len(faster.samples), len(slower.samples))} trials (needs {FEW})"
    if slower.result is None or faster.result is None:
        value, interval = ratio(slower.samples, faster.samples)
    else:
        value, interval = over(slower.result, faster.result)
    said = verdict(None if interval is None else (interval[0] - 1, interval[1] - 1))
    if interval is None or said != "slower":
        return "no difference seen" if said != "faster" else "the medians say the opposite of the means"
    return f"{value:.2f}x [{interval[0]:.2f}, {interval[1]:.2f}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The cost of waiting for the slowest of a batch."""

    batch: int
    mean_s: float
    """A rollout on its own."""
    batch_s: float
    """A batch, on average: its slowest rollout."""

    @property
    def waste(self) -> float:
        """Share of the workers' time that is spent waiting for the slowest."""
        return 1 - self.mean_s / self.batch_s if self.batch_s else 0.0


def tails(samples: Sequence[float], batches: Sequence[int] = BATCHES, rounds: int = 2_000) -> list[Tail]:
    """Synchronous batches, simulated from the measured distribution.

    Nothing slower than the slowest trial can be drawn, so with few trials this is a lower bound.
    """
    rng = np.random.default_rng(0)
    mean = float(np.mean(samples))
    return [
        Tail(batch=batch, mean_s=mean, batch_s=float(_resample(samples, rounds, rng, batch).max(axis=1).mean()))
        for batch in batches
    ]


def _resample(
    samples: Sequence[float], rounds: int, rng: np.random.Generator, size: int | None = None
) -> npt.NDArray[np.float64]:
    x = np.asarray(samples, dtype=float)
    return rng.choice(x, size=(rounds, size or len(x)))
