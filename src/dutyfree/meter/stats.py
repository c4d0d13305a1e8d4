"""Numbers from samples: quantiles, spread, intervals, ratios. A number that the samples cannot carry
is None.

Takes seconds, gives floats. A failed trial is an infinite time: it took longer than any that
succeeded, and no quantile forgets it. Trials that ran together share what happened to them, so a
cohort counts as one sample, by its median.

The interval of a median lies between two of its order statistics: its coverage follows from the
binomial distribution whatever the data look like. Intervals of ratios combine two such (Donner and
Zou's MOVER, on logarithms). Those of means are Student's, and only from 30 samples on.
`tests/statistics` holds the coverage of each: 93 to 97 %, or no interval.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import stats

COVERAGE = (0.9295, 0.9705)
"""What a nominal 95 % interval of a median may really have; below 5 samples no pair of them has it."""
FEWEST = 5
FEWEST_MEAN = 30
FEWEST_P95, FEWEST_P99 = 20, 100

Samples = Sequence[float] | npt.NDArray[np.float64]
Interval = tuple[float, float]
Cohorts = Sequence[Hashable] | None
"""Beside each sample, the cohort it ran in; None: each ran alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One cell's times."""

    n: int
    p50: float
    """Infinite where half of the trials failed."""
    p95: float | None
    p99: float | None
    mean: float
    """Of those that succeeded, as sd, low and high."""
    sd: float | None
    low: float
    high: float
    ci_p50: Interval | None
    ci_mean: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Time paid for one success: everything that ran, failures and their retries included, over what succeeded."""

    seconds: float
    ci95: Interval | None


def summarise(samples: Samples, cohorts: Cohorts = None) -> Summary:
    """Describe at least one sample that is finite."""
    x = np.asarray(samples, dtype=float)
    good = x[np.isfinite(x)]
    return Summary(
        n=len(x),
        p50=quantile(x, 0.5),
        p95=quantile(x, 0.95) if len(x) >= FEWEST_P95 else None,
        p99=quantile(x, 0.99) if len(x) >= FEWEST_P99 else None,
        mean=float(good.mean()),
        sd=float(good.std(ddof=1)) if len(good) > 1 else None,
        low=float(good.min()),
        high=float(good.max()),
        ci_p50=median_interval(x, cohorts),
        ci_mean=cost(good, np.ones(len(good)), _kept(cohorts, np.isfinite(x))).ci95,
    )


def quantile(samples: Samples, q: float) -> float:
    """Linear between the neighbours, as numpy's default; infinite from the first failure it touches."""
    x = np.sort(np.asarray(samples, dtype=float))
    place = q * (len(x) - 1)
    low, high = x[math.floor(place)], x[math.ceil(place)]
    return float(low if low == high else low + (high - low) * (place - math.floor(place)))


def median_interval(samples: Samples, cohorts: Cohorts = None) -> Interval | None:
    """Bound the median with 95 % confidence; None below five samples or cohorts."""
    x = np.sort(_alone(samples, cohorts))
    pair = order_pair(len(x))
    return None if pair is None else (float(x[pair[0] - 1]), float(x[pair[1] - 1]))


def tax(
    samples: Samples, reference: Samples, cohorts: Cohorts = None, reference_cohorts: Cohorts = None
) -> tuple[float, Interval | None]:
    """Median over the reference's median, less one; with its interval."""
    value, found = ratio(samples, reference, cohorts, reference_cohorts)
    return value - 1, None if found is None else (found[0] - 1, found[1] - 1)


def ratio(
    samples: Samples, reference: Samples, cohorts: Cohorts = None, reference_cohorts: Cohorts = None
) -> tuple[float, Interval | None]:
    """Median over the reference's median; with its interval, None where either has fewer than five samples."""
    over, under = quantile(samples, 0.5), quantile(reference, 0.5)
    value = over / under if math.isfinite(under) else math.nan
    x, y = _alone(samples, cohorts), _alone(reference, reference_cohorts)
    if min(len(x), len(y)) < FEWEST or not (math.isfinite(over) and math.isfinite(under)):
        return value, None
    (m, low, high), (m0, low0, high0) = _logs(x), _logs(y)
    d = m - m0
    return value, (
        math.exp(d - math.hypot(m - low, high0 - m0)),
        math.exp(d + math.hypot(high - m, m0 - low0)),
    )


def cost(spent: Samples, succeeded: Samples, cohorts: Cohorts = None) -> Cost:
    """Seconds spent per success, by the linearised ratio; at least one trial succeeded.

    An interval needs 30 trials, and, where some failed, five failures: a rate that was seen once is not known.
    """
    x, ok = np.asarray(spent, dtype=float), np.asarray(succeeded, dtype=float)
    value = float(x.sum() / ok.sum())
    failed = len(ok) - int(ok.sum())
    rest = x - value * ok
    groups = _groups(len(x), cohorts)
    sums = np.array([rest[group].sum() for group in groups])
    m = len(sums)
    if len(x) < FEWEST_MEAN or m < 8 or 0 < failed < FEWEST:
        return Cost(seconds=value, ci95=None)
    half = float(stats.t.ppf(0.975, m - 1) * sums.std(ddof=1) * math.sqrt(m) / ok.sum())
    return Cost(seconds=value, ci95=(value - half, value + half))


def verdict(interval: Interval | None, margin: float = 0.0) -> str:
    """In words, of an interval around a difference from zero: `equal` only where all of it lies within the margin."""
    if interval is None:
        return "not known"
    low, high = interval
    if margin and -margin <= low and high <= margin:
        return "equal"
    if low > 0:
        return "slower"
    return "faster" if high < 0 else "no difference seen"


@cache
def order_pair(n: int) -> tuple[int, int] | None:
    """The places (from 1) of the order statistics that hold the median 95 times in 100, by the binomial distribution.

    Evenly placed where that has the coverage; else the lower end moves in, so that the slow side is kept.
    """
    for shift in (0, 1):
        pairs = [(low + shift, n + 1 - low) for low in range(1, n // 2 + 1) if low + shift < n + 1 - low]
        fit = [pair for pair in pairs if COVERAGE[0] <= coverage(n, *pair) <= COVERAGE[1]]
        if fit:
            return min(fit, key=lambda pair: abs(coverage(n, *pair) - 0.95))
    return None


def coverage(n: int, low: int, high: int) -> float:
    """Share of runs in which the median of any continuous distribution lies between these two of n order statistics."""
    return float(stats.binom.cdf(high - 1, n, 0.5) - stats.binom.cdf(low - 1, n, 0.5))


def _logs(x: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Median and ends for MOVER, as logarithms: two ends of 92 % (94 from 50 samples) make a ratio's 95 %.

    The ends lie between order statistics, as Hettmansperger and Sheather interpolate them: few samples have no pair of
    that level.
    """
    ordered, n = np.sort(x), len(x)
    level = 0.92 if n < 50 else 0.94
    low = 1
    while coverage(n, low + 1, n - low) >= level and low + 1 < n - low:
        low += 1
    outer, inner = coverage(n, low, n + 1 - low), coverage(n, low + 1, n - low)
    share = min(1.0, max(0.0, (outer - level) / (outer - inner)))
    weight = (n - low) * share / (low + (n - 2 * low) * share)
    below = _between(ordered[low - 1], ordered[low], weight)
    above = _between(ordered[n - low], ordered[n - low - 1], weight)
    return math.log(quantile(x, 0.5)), math.log(below), math.log(above)


def _between(outer: float, inner: float, weight: float) -> float:
    return outer if not math.isfinite(outer) or outer == inner else (1 - weight) * outer + weight * inner


def _groups(n: int, cohorts: Cohorts) -> list[list[int]]:
    members: dict[Hashable, list[int]] = {}
    for index, cohort in enumerate(cohorts if cohorts is not None else range(n)):
        members.setdefault(cohort, []).append(index)
    return list(members.values())


def _alone(samples: Samples, cohorts: Cohorts) -> npt.NDArray[np.float64]:
    """One sample for each cohort: its median."""
    x = np.asarray(samples, dtype=float)
    if cohorts is None:
        return x
    return np.array([quantile(x[group], 0.5) for group in _groups(len(x), cohorts)])


def _kept(cohorts: Cohorts, where: npt.NDArray[np.bool_]) -> Cohorts:
    return None if cohorts is None else [cohort for cohort, kept in zip(cohorts, where, strict=True) if kept]
