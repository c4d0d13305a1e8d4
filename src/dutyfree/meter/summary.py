"""From records to results: one `Result` for each (substrate, tier, steps, parallel, profile), and `summary.json`.

Derives everything from records and the manifest; measures nothing. Warm-up trials are left out. A failed trial counts
as slower than any that succeeded, and the time it took is paid by those. The decomposition is the mean of each
component over the trials that succeeded, since means (unlike medians) sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dutyfree.meter.record import COMPONENTS, Record
from dutyfree.meter.stats import FEWEST_P95, Cost, Interval, Summary, cost, quantile, ratio, summarise, tax
from dutyfree.meter.workloads import tier0

REFERENCE = "host"
"""The substrate that turns times into a tax."""
INSTRUMENT = "noop"
"""The substrate that does nothing: what is left is the meter itself."""

NS = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """The configuration that a result is about."""

    substrate: str
    dispatch: str
    tier: str
    steps: int
    parallel: int
    profile: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Rollouts beside each other, and what they cost the whole machine."""

    rollouts_per_hour: float
    """Successful rollouts only, think time included."""
    action_p95_s: float | None
    think_s: float
    """Mean pauses of a rollout."""
    machine_cpu_s: float
    """Processor time of the whole machine for one rollout, mean."""
    memory_bytes: float | None
    """Of the whole machine for one live sandbox, mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One row of the results."""

    key: Key
    title: str
    """The substrate as tables and legends name it: with dispatch and profile where one name is not enough."""
    emulated: bool
    """A machine without hardware support: its times are the emulator's."""
    n: int
    """All trials, failed ones included."""
    failures: Mapping[str, int]
    """By kind."""
    times: tuple[float, ...]
    """Seconds of the trials that succeeded, in the order in which they ran."""
    censored: tuple[float, ...]
    """Seconds of all trials, without end for those that failed."""
    cohorts: tuple[int, ...] | None
    """Which of them ran together; None where each ran alone."""
    summary: Summary | None
    """None if none succeeded."""
    cost: Cost | None
    """Seconds paid for one success, failures included; None if none succeeded."""
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
    """Of which the command does not account for, as the substrate tells it."""
    action_excess_p50: float | None
    """One action over the host's same action: what the substrate adds, whoever tells it."""
    excess_mean: float | None
    """All actions of a rollout over the host's, mean."""
    direct_p50: float | None
    """T0's `true`, executed directly; None for other tiers and cold starts."""
    shell_p50: float | None
    """T0's `echo`, by `bash -c`: the same and a shell."""
    steal_share: float
    """Processor time stolen meanwhile, as a share of wall time."""
    load: Load | None
    """Throughput and the machine's part; None where records are too old to know."""
    exit_codes: tuple[tuple[int, ...], ...]
    """Of each trial's actions; empty where records have none."""

    @property
    def failed(self) -> int:
        """Number of trials that failed."""
        return sum(self.failures.values())

    @property
    def lasting(self) -> bool:
        """Fewer than half of the trials failed: there is a median."""
        return self.summary is not None and math.isfinite(self.summary.p50)

    @property
    def amortised_action_s(self) -> float | None:
        """Whole rollout over the number of actions, median; None for cold starts."""
        return self.summary.p50 / self.key.steps if self.summary and self.key.steps else None


def over(slow: Result, fast: Result) -> tuple[float, Interval | None]:
    """One median over another, failures and cohorts included."""
    return ratio(slow.censored, fast.censored, slow.cohorts, fast.cohorts)


def results(records: Iterable[Record]) -> list[Result]:
    """All results, in a stable order. `tax` compares with the host under the same conditions."""
    groups: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        if not record.warmup:
            groups[_key(record)].append(record)
    references = {_conditions(k): g for k, g in groups.items() if k.substrate == REFERENCE}
    titles = _titles(groups)
    return [_result(k, titles[k], groups[k], references.get(_conditions(k), [])) for k in sorted(groups, key=_order)]


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


def instrument(found: Sequence[Result], parallel: int = 1) -> dict[str, float] | None:
    """The meter's own cost per action, from the substrate that does nothing; None if it was not measured."""
    rows = [
        r for r in found if r.key.substrate == INSTRUMENT and r.key.steps and r.key.parallel == parallel and r.summary
    ]
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
        key.substrate == INSTRUMENT,
        key.substrate,
    )


def _censored(group: Sequence[Record]) -> list[float]:
    """Seconds of each trial, without end for those that failed."""
    return [record.total_ns * NS if record.ok else math.inf for record in group]


def _cohorts(group: Sequence[Record]) -> list[int] | None:
    """Which trials ran together; None where each ran alone."""
    return [record.block for record in group] if group and group[0].parallel > 1 else None


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


def _result(key: Key, title: str, group: Sequence[Record], reference: Sequence[Record]) -> Result:
    good = [record for record in group if record.ok]
    cohorts = _cohorts(group)
    known = bool(good) and any(record.ok for record in reference)
    rate, interval = (
        tax(_censored(group), _censored(reference), cohorts, _cohorts(reference)) if known else (None, None)
    )
    actions = np.array([ns for record in good for ns in record.actions_ns], dtype=float) * NS
    runs = np.array([ns for record in good for ns in record.actions_run_ns], dtype=float) * NS
    excess = _excess(good, [record for record in reference if record.ok])
    wall_ns = sum(record.total_ns for record in group)
    return Result(
        key=key,
        title=title,
        emulated=any("accel=tcg" in record.version for record in group),
        n=len(group),
        failures=_failures(group),
        times=tuple(record.total_ns * NS for record in good),
        censored=tuple(_censored(group)),
        cohorts=None if cohorts is None else tuple(cohorts),
        summary=summarise(_censored(group), cohorts) if good else None,
        cost=cost([r.total_ns * NS for r in group], [r.ok for r in group], cohorts) if good else None,
        tax=rate,
        tax_ci95=interval,
        decomposition={
            name: float(np.mean([getattr(r, f"{name}_ns") for r in good])) * NS if good else 0.0 for name in COMPONENTS
        },
        first_result=_first_result(group),
        teardown_mean=float(np.mean([r.teardown_ns for r in good])) * NS if good else 0.0,
        action_p50=float(np.median(actions)) if len(actions) else None,
        action_dispatch_p50=float(np.median(actions - runs)) if len(actions) else None,
        action_excess_p50=float(np.median(excess)) if excess is not None else None,
        excess_mean=_excess_mean(good, [record for record in reference if record.ok]),
        direct_p50=_place_p50(good, key, tier0.DIRECT),
        shell_p50=_place_p50(good, key, tier0.SHELL),
        steal_share=sum(r.steal_ns for r in group) / wall_ns if wall_ns else 0.0,
        load=_load(group, good),
        exit_codes=tuple(tuple(record.exit_codes) for record in group),
    )


def _failures(group: Sequence[Record]) -> dict[str, int]:
    failures: dict[str, int] = defaultdict(int)
    for record in group:
        if not record.ok:
            failures[record.failure_kind or "unknown"] += 1
    return dict(failures)


def _load(group: Sequence[Record], good: Sequence[Record]) -> Load | None:
    costs = [record.machine_cpu_ns for record in group if record.machine_cpu_ns is not None]
    if len(costs) != len(group) or not good:
        return None
    walls: dict[int, int] = defaultdict(int)
    for record in group:
        walls[record.block] = max(walls[record.block], record.total_ns + record.think_ns + record.preload_ns)
    actions = [ns * NS for record in good for ns in record.actions_ns]
    memory = [record.live_bytes for record in group if record.live_bytes is not None]
    return Load(
        rollouts_per_hour=3600 * len(good) / (sum(walls.values()) * NS),
        action_p95_s=quantile(actions, 0.95) if len(actions) >= FEWEST_P95 else None,
        think_s=float(np.mean([record.think_ns for record in group])) * NS,
        machine_cpu_s=float(np.mean(costs)) * NS,
        memory_bytes=float(np.mean(memory)) if memory else None,
    )


def _first_result(group: Sequence[Record]) -> Summary | None:
    """Summarise the time from the request to the first command's result; a trial that failed earlier had none."""
    known = [record for record in group if record.first_result_ns is not None or not record.ok]
    firsts = [math.inf if one.first_result_ns is None else one.first_result_ns * NS for one in known]
    return summarise(firsts, _cohorts(known)) if any(map(math.isfinite, firsts)) else None


def _excess(good: Sequence[Record], reference: Sequence[Record]) -> npt.NDArray[np.float64] | None:
    """Each action's time over the host's median for the same action; None without one to compare with."""
    lengths = {len(record.actions_ns) for record in (*good, *reference)}
    if not good or not reference or len(lengths) != 1 or lengths == {0}:
        return None
    host = np.median(np.array([record.actions_ns for record in reference], dtype=float), axis=0)
    return np.asarray(np.array([record.actions_ns for record in good], dtype=float) - host) * NS


def _excess_mean(good: Sequence[Record], reference: Sequence[Record]) -> float | None:
    if _excess(good, reference) is None:
        return None
    mine, host = (np.mean([sum(record.actions_ns) for record in group]) for group in (good, reference))
    return float(mine - host) * NS


def _place_p50(good: Sequence[Record], key: Key, place: int) -> float | None:
    """The median of one place in T0's cycle."""
    if key.tier != "T0" or not key.steps:
        return None
    times = [ns for record in good for ns in record.actions_ns[place :: tier0.CYCLE]]
    return quantile(times, 0.5) * NS if times else None


def _row(result: Result) -> dict[str, Any]:
    key, found, first = result.key, result.summary, result.first_result
    return {
        "substrate": key.substrate,
        "dispatch": key.dispatch,
        "tier": key.tier,
        "steps": key.steps,
        "parallel": key.parallel,
        "profile": key.profile,
        "emulated": result.emulated,
        "n": result.n,
        "failures": result.failed,
        "failure_kinds": dict(result.failures),
        "p50_s": _finite(found.p50) if found else None,
        "p95_s": _finite(found.p95) if found else None,
        "p99_s": _finite(found.p99) if found else None,
        "mean_s": found.mean if found else None,
        "sd_s": found.sd if found else None,
        "ci95_p50_s": _ends(found.ci_p50) if found else None,
        "ci95_mean_s": _ends(found.ci_mean) if found else None,
        "cost_s": result.cost.seconds if result.cost else None,
        "ci95_cost_s": _ends(result.cost.ci95) if result.cost else None,
        "tax": _finite(result.tax),
        "tax_ci95": _ends(result.tax_ci95),
        "amortised_action_s": _finite(result.amortised_action_s),
        "action_p50_s": result.action_p50,
        "action_dispatch_p50_s": result.action_dispatch_p50,
        "action_excess_p50_s": result.action_excess_p50,
        "first_result_p50_s": _finite(first.p50) if first else None,
        "first_result_p95_s": _finite(first.p95) if first else None,
        "teardown_mean_s": result.teardown_mean,
        "load": None if result.load is None else asdict(result.load),
        "decomposition_s": dict(result.decomposition),
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: a quantile that failures reach is null, beside a number of failures."""
    return value if value is not None and math.isfinite(value) else None


def _ends(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [_finite(interval[0]), _finite(interval[1])]
