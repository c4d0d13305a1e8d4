"""The tables at training scale: worker-hours, sensitivity, ranking, parallelism and reuse, batches, what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dutyfree.meter.projection import (
    LENGTHS,
    REUSES,
    STEPS,
    TRAJECTORIES,
    Curve,
    compare,
    curves,
    rank_agreement,
    ranking,
    tails,
    what_ifs,
    worker_hours,
)
from dutyfree.meter.summary import Result
from dutyfree.report.text import NONE, Table, count, seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The scale that the user has in mind."""

    trajectories: Sequence[int] = TRAJECTORIES
    lengths: Sequence[int] = LENGTHS
    workers: Sequence[int] = (64, 1024)
    """Rollouts in flight at the same time."""
    price: float = 0.10
    """Price of one worker-hour; an assumption."""
    currency: str = "USD"


def tables(found: Sequence[Result], scale: Scale | None = None) -> list[Table]:
    """All of them, for the most demanding tier that has trajectories."""
    wanted = scale or Scale()
    tier = max((r.key.tier for r in found if r.key.steps and r.summary), default=None)
    lines = curves(found, tier, parallel=alone(found)) if tier else []
    if not lines or tier is None:
        return [_what_ifs()]
    return [
        _hours(lines, tier, wanted),
        _sensitivity(lines, tier, wanted),
        _ranks(lines, tier, wanted),
        _parallel(found, lines, tier, wanted),
        _batches(lines, tier),
        _what_ifs(),
    ]


def alone(found: Sequence[Result]) -> int:
    """The least number in flight that was measured: a run may hold crowds only."""
    return min((r.key.parallel for r in found if r.key.steps and r.summary), default=1)


def _mark(curve: Curve, steps: int) -> str:
    return "*" if curve.extrapolated(steps) else ""


def _hours(lines: Sequence[Curve], tier: str, scale: Scale) -> Table:
    rows = []
    for curve in lines:
        time = curve.seconds(STEPS)
        hours = [worker_hours(n, time) for n in scale.trajectories]
        rows.append(
            [
                curve.name,
                seconds(time) + _mark(curve, STEPS),
                *(count(h) for h in hours),
                count(worker_hours(1_000_000, time) - worker_hours(1_000_000, lines[0].seconds(STEPS))),
                _hours_interval(curve),
                f"{worker_hours(1_000_000, time) * scale.price:,.0f} {scale.currency}",
            ]
        )
    return Table(
        title=f"Table 2. Worker-hours at training scale ({tier}, {STEPS} steps)",
        columns=["substrate", f"T({STEPS})", *(f"{n:,} trajectories" for n in scale.trajectories),
                 "more than the fastest, per 1M", "95 % interval, per 1M", f"cost per 1M at {scale.price:g} {scale.currency}/h"],
        rows=rows,
        note="worker_hours(s, N) = N · T_s(150) / 3600, without inference and reward. T_s is the time paid per success: the "
        "mean, failures and their retries included. Its interval is given from 30 trials on (of failures: from five). "
        "* continued beyond the measured lengths.",
    )  # fmt: skip


def _hours_interval(curve: Curve) -> str:
    if curve.interval is None or curve.extrapolated(STEPS) or curve.longest != STEPS:
        return f"{NONE} (n={curve.n})"
    low, high = (worker_hours(1_000_000, end) for end in curve.interval)
    return f"{count(low)} … {count(high)}"


def _sensitivity(lines: Sequence[Curve], tier: str, scale: Scale) -> Table:
    rows = [
        [
            curve.name,
            f"{n:,}",
            *(count(worker_hours(n, curve.seconds(k))) + _mark(curve, k) for k in scale.lengths),
        ]
        for curve in lines
        for n in scale.trajectories
        if n >= 100_000
    ]
    return Table(
        title=f"Sensitivity: worker-hours by length and number of trajectories ({tier})",
        columns=["substrate", "trajectories", *(f"{k} steps" for k in scale.lengths)],
        rows=rows,
        note="* continued with the slope between the two longest measured lengths.",
    )


def _ranks(lines: Sequence[Curve], tier: str, scale: Scale) -> Table:
    rows = [
        [
            f"{k} steps" + ("" if reuse == 1 else f", each sandbox reused {reuse}×"),
            " < ".join(ranking(lines, k, reuse)),
            f"{rank_agreement(lines, k, reuse):+.2f}",
        ]
        for reuse in REUSES
        for k in (scale.lengths if reuse == 1 else (STEPS,))
    ]
    pairs = [f"{b.name} over {a.name}: {compare(a, b)}" for a, b in pairwise(lines)]
    holds = all(ranking(lines, k, r) == ranking(lines, STEPS) for k in scale.lengths for r in REUSES)
    verdict = (
        "The order of means is the same everywhere in this table."
        if holds
        else "The order of means changes within this table."
    )
    sure = f" Neighbours at {lines[0].longest} steps, ratio of medians: {'; '.join(pairs)}." if pairs else ""
    return Table(
        title=f"Does the ranking hold? ({tier})",
        columns=["conditions", "ranking, fastest first", "agreement (Kendall τ)"],
        rows=rows,
        note=f"{verdict}{sure} The number of trajectories scales all alike and cannot change it.",
    )


def _parallel(found: Sequence[Result], lines: Sequence[Curve], tier: str, scale: Scale) -> Table:
    crowds = sorted(
        {r.key.parallel for r in found if r.key.tier == tier and r.key.steps and r.summary} - {alone(found)}
    )
    crowded = {n: {c.name: c for c in curves(found, tier, parallel=n)} for n in crowds}
    rows = []
    for curve in lines:
        time = curve.seconds(STEPS)
        slower = [
            f"{crowded[n][curve.name].seconds(STEPS) / time:.2f}×" if curve.name in crowded[n] else NONE for n in crowds
        ]
        rows.append(
            [
                curve.name,
                *(count(worker_hours(1_000_000, time) / n) for n in scale.workers),
                *(count(worker_hours(1_000_000, curve.seconds(STEPS, reuse))) for reuse in REUSES[1:]),
                *slower,
            ]
        )
    return Table(
        title=f"Parallelism and reuse, 1M trajectories of {STEPS} steps ({tier})",
        columns=[
            "substrate",
            *(f"wall-clock hours, {n:,} workers" for n in scale.workers),
            *(f"worker-hours, sandbox reused {n}×" for n in REUSES[1:]),
            *(f"slower with {n} at once (measured)" for n in crowds),
        ],
        rows=rows,
        note="Wall-clock assumes that workers do not slow each other down"
        + (
            "; the last columns say how much they do on this machine."
            if crowds
            else "; measure with `--parallel 1,8` to see how much they do."
        )
        + " Reuse pays create, ready, set-up and destroy once per sandbox.",
    )


def _batches(lines: Sequence[Curve], tier: str) -> Table:
    rows = []
    for curve in lines:
        found = tails(curve.samples)
        rows.append([curve.name, seconds(found[0].mean_s), *(f"{seconds(t.batch_s)} ({t.waste:.0%})" for t in found)])
    sizes = [t.batch for t in tails(lines[0].samples)]
    return Table(
        title=f"The long tail: synchronous batches wait for their slowest rollout ({tier}, {lines[0].longest} steps)",
        columns=["substrate", "one rollout (mean)", *(f"batch of {n}" for n in sizes)],
        rows=rows,
        note="Simulated by drawing from the measured rollouts; in brackets the share of the workers' time spent "
        f"waiting. Nothing slower than the slowest of {len(lines[0].samples)} trials can be drawn: a lower bound.",
    )


def _what_ifs() -> Table:
    return Table(
        title=f"Why small delays matter (1M rollouts of {STEPS} steps)",
        columns=["delay", "worker-hours"],
        rows=[[name, f"{hours:,.0f}"] for name, hours in what_ifs()],
    )
