"""The study's findings beside those of this run."""

from __future__ import annotations

from collections.abc import Sequence

from dutyfree.meter.summary import Result, over
from dutyfree.report import reference
from dutyfree.report.tables import real
from dutyfree.report.text import NONE, Table, count, seconds


def table(found: Sequence[Result]) -> Table:
    """The study's findings, and the same quantity here."""
    rows = [
        ["spread of cold starts, fastest to slowest", f"up to {reference.COLD_START_SPREAD:.0f}×", _cold_spread(found)],
        ["order of cold starts", reference.ORDER, _cold_order(found)],
        [
            "slowest over fastest on T2, cold start",
            f"{reference.VM_OVER_HOSTED_T2}× (VM / hosted)",
            _spread(found, "T2", 0),
        ],
        [
            "150 steps, slowest and fastest",
            f"{reference.SLOWEST_150_S} s, {reference.FASTEST_150_S} s ({reference.SPREAD_150}×)",
            _extremes(found, 150),
        ],
        [
            "worker-hours per 1M of 150 steps",
            f"{reference.SLOWEST_HOURS:,.0f}, {reference.FASTEST_HOURS:,.0f}",
            _hours(found, 150),
        ],
        [
            "50-action bug fix",
            ", ".join(f"{name} {value} s" for name, value in reference.COMPANION_50_S.items()),
            _each(found, "T2", 50),
        ],
    ]
    return Table(
        title=f"The study ({reference.SOURCE}) beside this run",
        columns=["finding", "study", "here"],
        rows=rows,
        note="Other machines, substrates and commands: for orientation. `host` and emulated machines are left out of spreads "
        "and orders.",
    )


def _rivals(found: Sequence[Result], tier: str, length: int) -> list[Result]:
    rows = [r for r in real(found) if r.key.tier == tier and r.key.steps == length and r.key.substrate != "host"]
    return sorted(rows, key=lambda r: r.summary.p50 if r.summary else 0.0)


def _best_tier(found: Sequence[Result], length: int) -> str:
    tiers = {r.key.tier for r in real(found) if r.key.steps == length}
    return max(tiers, default="T2")


def _cold_spread(found: Sequence[Result]) -> str:
    return _spread(found, "T0", 0)


def _spread(found: Sequence[Result], tier: str, length: int) -> str:
    rows = _rivals(found, tier, length)
    if len(rows) < 2:
        return "needs two substrates besides the host"
    value, interval = over(rows[-1], rows[0])
    ends = f"{count(interval[0])} … {count(interval[1])}" if interval else "no interval from so few"
    numbers = f"n={rows[-1].n} and {rows[0].n}"
    return f"{count(value)}× on {tier} ({rows[-1].title} / {rows[0].title}; {ends}; {numbers})"


def _cold_order(found: Sequence[Result]) -> str:
    return " < ".join(r.title for r in _rivals(found, "T0", 0)) or NONE


def _extremes(found: Sequence[Result], length: int) -> str:
    rows = _rivals(found, _best_tier(found, length), length)
    if not rows:
        return NONE
    names = [f"{r.title} {seconds(r.summary.p50)}" for r in (rows[-1], rows[0]) if r.summary]
    return f"{', '.join(dict.fromkeys(names))} ({rows[0].key.tier})"


def _hours(found: Sequence[Result], length: int) -> str:
    rows = _rivals(found, _best_tier(found, length), length)
    values = [f"{r.title} {count(r.cost.seconds * 1e6 / 3600)}" for r in (rows[-1:] + rows[:1]) if r.cost]
    return ", ".join(dict.fromkeys(values)) or NONE


def _each(found: Sequence[Result], tier: str, length: int) -> str:
    rows = [r for r in real(found) if r.key.tier == tier and r.key.steps == length]
    return ", ".join(f"{r.title} {seconds(r.summary.p50)}" for r in rows if r.summary) or NONE
