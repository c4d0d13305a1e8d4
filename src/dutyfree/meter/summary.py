"""From records to results: one `Result` for each (substrate, tier, steps, parallel, profile), and `summary.json`.

Derives everything from records and the manifest; measures nothing. Warm-up trials are left out, failed trials count in
`n` and not in the times. The decomposition is the mean of each component, since means (unlike medians) sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dutyfree.meter.record import COMPONENTS, Record
from dutyfree.meter.stats import Interval, Summary, summarise, tax
from dutyfree.meter.workloads import tier0

REFERENCE = "host"
"""The substrate that turns times into a tax."""

NS = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """What a result is about."""

    substrate: str
    dispatch: str
    tier: str
    steps: int
    parallel: int
    profile: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One row of the results."""

    key: Key
    title: str
    """The substrate as tables and legends name it: with dispatch and profile where one name is not enough."""
    n: int
    """All trials, failed ones included."""
    failures: Mapping[str, int]
    """By kind."""
    times: tuple[float, ...]
    """Seconds of the trials that succeeded, in the order in which they ran."""
    summary: Summary | None
    """None if none succeeded."""
    tax: float | None
    tax_ci95: Interval | None
    decomposition: Mapping[str, float]
    """Mean seconds of each component."""
    first_result: Summary | None
    """Request to the first command's result."""
    teardown_mean: float
    action_p50: float | None
    """One action, call to result."""
    action_dispatch_p50: float | None
    """Of which the substrate's own."""
    direct_p50: float | None
    """T0's `true`, executed directly; None for other tiers and cold starts."""
    shell_p50: float | None
    """T0's `echo`, by `bash -c`: the same and a shell."""
    steal_share: float
    """Processor time stolen meanwhile, as a share of wall time."""

    @property
    def failed(self) -> int:
        """How many trials failed."""
        return sum(self.failures.values())

    @property
    def amortised_action_s(self) -> float | None:
        """Whole rollout over the number of actions, median; None for cold starts."""
        return self.summary.p50 / self.key.steps if self.summary and self.key.steps else None


def results(records: Iterable[Record]) -> list[Result]:
    """All results, in a stable order. `tax` compares with the host under the same conditions."""
    groups: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        if not record.warmup:
            groups[_key(record)].append(record)
    references = {_conditions(k): _times(g) for k, g in groups.items() if k.substrate == REFERENCE}
    titles = _titles(groups)
    return [_result(k, titles[k], groups[k], references.get(_conditions(k))) for k in sorted(groups, key=_order)]


def to_json(found: Sequence[Result], manifest: Mapping[str, Any], warnings: Sequence[str]) -> dict[str, Any]:
    """`summary.json`."""
    return {
        "schema": 1,
        "host": manifest["host"],
        "protocol": manifest["protocol"],
        "subjects": manifest["subjects"],
        "results": [_row(result) for result in found],
        "instrument": instrument(found),
        "warnings": list(warnings),
    }


def instrument(found: Sequence[Result]) -> dict[str, float] | None:
    """What this meter itself costs per action, from the substrate that does nothing; None if it was not measured."""
    rows = [r for r in found if r.key.substrate == "noop" and r.key.steps and r.key.parallel == 1 and r.summary]
    if not rows:
        return None
    longest = max(rows, key=lambda r: r.key.steps)
    # Its uploads copy files into memory, which no other substrate does: set-up is left out.
    overheads = [
        (sum(r.decomposition.values()) - r.decomposition["setup"]) / r.key.steps
        for r in rows
        if r.key.steps == longest.key.steps
    ]
    return {"steps": longest.key.steps, "per_action_s": max(overheads)}


def _key(record: Record) -> Key:
    return Key(
        substrate=record.substrate,
        dispatch=record.dispatch,
        tier=record.tier,
        steps=record.steps,
        parallel=record.parallel,
        profile=record.profile,
    )


def _conditions(key: Key) -> tuple[str, int, int]:
    return key.tier, key.steps, key.parallel


def _order(key: Key) -> tuple[Any, ...]:
    return (
        key.tier,
        key.steps,
        key.parallel,
        key.profile,
        key.substrate != REFERENCE,
        key.substrate == "noop",
        key.substrate,
    )


def _times(group: Sequence[Record]) -> list[float]:
    return [record.total_ns * NS for record in group if record.ok]


def _titles(keys: Iterable[Key]) -> dict[Key, str]:
    every = list(keys)
    modes: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for key in every:
        modes[key.substrate].add((key.dispatch, key.profile))
    return {key: _title(key, modes[key.substrate]) for key in every}


def _title(key: Key, modes: set[tuple[str, str]]) -> str:
    marks = [key.dispatch] if len({dispatch for dispatch, _ in modes}) > 1 else []
    marks += [key.profile] if key.profile != "controlled" else []
    return f"{key.substrate} ({', '.join(marks)})" if marks else key.substrate


def _result(key: Key, title: str, group: Sequence[Record], reference: Sequence[float] | None) -> Result:
    good = [record for record in group if record.ok]
    failures: dict[str, int] = defaultdict(int)
    for record in group:
        if not record.ok:
            failures[record.failure_kind or "unknown"] += 1
    times = _times(group)
    rate, interval = tax(times, reference) if times and reference else (None, None)
    firsts = [record.first_result_ns * NS for record in good if record.first_result_ns is not None]
    actions = np.array([ns for record in good for ns in record.actions_ns], dtype=float) * NS
    runs = np.array([ns for record in good for ns in record.actions_run_ns], dtype=float) * NS
    wall_ns = sum(record.total_ns for record in group)
    return Result(
        key=key,
        title=title,
        n=len(group),
        failures=dict(failures),
        times=tuple(times),
        summary=summarise(times) if times else None,
        tax=rate,
        tax_ci95=interval,
        decomposition={
            name: float(np.mean([getattr(r, f"{name}_ns") for r in good])) * NS if good else 0.0 for name in COMPONENTS
        },
        first_result=summarise(firsts) if firsts else None,
        teardown_mean=float(np.mean([r.teardown_ns for r in good])) * NS if good else 0.0,
        action_p50=float(np.median(actions)) if len(actions) else None,
        action_dispatch_p50=float(np.median(actions - runs)) if len(actions) else None,
        direct_p50=_place_p50(good, key, tier0.DIRECT),
        shell_p50=_place_p50(good, key, tier0.SHELL),
        steal_share=sum(r.steal_ns for r in group) / wall_ns if wall_ns else 0.0,
    )


def _place_p50(good: Sequence[Record], key: Key, place: int) -> float | None:
    """The median of one place in T0's cycle."""
    if key.tier != "T0" or not key.steps:
        return None
    times = [ns for record in good for ns in record.actions_ns[place :: tier0.CYCLE]]
    return float(np.median(times)) * NS if times else None


def _row(result: Result) -> dict[str, Any]:
    key, found, first = result.key, result.summary, result.first_result
    return {
        "substrate": key.substrate,
        "dispatch": key.dispatch,
        "tier": key.tier,
        "steps": key.steps,
        "parallel": key.parallel,
        "profile": key.profile,
        "n": result.n,
        "failures": result.failed,
        "failure_kinds": dict(result.failures),
        "p50_s": found.p50 if found else None,
        "p95_s": found.p95 if found else None,
        "p99_s": found.p99 if found else None,
        "mean_s": found.mean if found else None,
        "sd_s": found.sd if found else None,
        "ci95_p50_s": list(found.ci_p50) if found else None,
        "ci95_mean_s": list(found.ci_mean) if found else None,
        "tax": result.tax,
        "tax_ci95": list(result.tax_ci95) if result.tax_ci95 else None,
        "amortised_action_s": result.amortised_action_s,
        "action_p50_s": result.action_p50,
        "action_dispatch_p50_s": result.action_dispatch_p50,
        "first_result_p50_s": first.p50 if first else None,
        "first_result_p95_s": first.p95 if first else None,
        "teardown_mean_s": result.teardown_mean,
        "decomposition_s": dict(result.decomposition),
    }
