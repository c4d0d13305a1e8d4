"""Numbers from samples: quantiles, spread, bootstrap intervals, ratios. numpy and scipy do the arithmetic.

Takes plain sequences of seconds, gives plain floats. Intervals are percentile bootstraps from a fixed seed, so a report
made twice is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

RESAMPLES = 5_000
CONFIDENCE = 0.95

Samples = Sequence[float] | npt.NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One cell's times."""

    n: int
    p50: float
    p95: float
    p99: float
    mean: float
    sd: float
    low: float
    high: float
    ci_p50: Interval
    ci_mean: Interval


def summarise(samples: Samples) -> Summary:
    """Describe at least one sample. With a single one the intervals are that point: nothing is known of the spread."""
    x = np.asarray(samples, dtype=float)
    p50, p95, p99 = (float(q) for q in np.quantile(x, [0.5, 0.95, 0.99]))
    return Summary(
        n=len(x),
        p50=p50,
        p95=p95,
        p99=p99,
        mean=float(x.mean()),
        sd=float(x.std(ddof=1)) if len(x) > 1 else 0.0,
        low=float(x.min()),
        high=float(x.max()),
        ci_p50=_interval((x,), _median),
        ci_mean=_interval((x,), np.mean),
    )


def median_interval(samples: Samples) -> Interval:
    """Where the median lies, with 95 % confidence."""
    return _interval((np.asarray(samples, dtype=float),), _median)


def tax(samples: Samples, reference: Samples) -> tuple[float, Interval]:
    """Median over the reference's median, less one; with its interval."""
    x, y = np.asarray(samples, dtype=float), np.asarray(reference, dtype=float)
    return float(np.median(x) / np.median(y) - 1), _interval((x, y), _median_ratio)


def ratio(samples: Samples, reference: Samples) -> tuple[float, Interval]:
    """Median over the reference's median; with its interval."""
    value, (low, high) = tax(samples, reference)
    return value + 1, (low + 1, high + 1)


def _median(x: npt.NDArray[np.float64], axis: int = -1) -> npt.NDArray[np.float64]:
    return np.asarray(np.median(x, axis=axis))


def _median_ratio(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], axis: int = -1) -> npt.NDArray[np.float64]:
    return np.asarray(np.median(x, axis=axis) / np.median(y, axis=axis) - 1)


def _interval(data: tuple[npt.NDArray[np.float64], ...], statistic: Callable[..., Any]) -> Interval:
    if any(len(x) < 2 for x in data):
        value = float(statistic(*data))
        return value, value
    result = stats.bootstrap(
        data,
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
