"""The first screen of the report: one sentence, one ranked chart, and where a saving comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dutyfree.meter.projection import FEW, STEPS, worker_hours
from dutyfree.meter.stats import verdict
from dutyfree.meter.summary import REFERENCE, Result, over
from dutyfree.meter.workloads.live import THINK_MEAN_S
from dutyfree.report.cold import stocks
from dutyfree.report.parts import parts
from dutyfree.report.scale import Scale
from dutyfree.report.style import PART_COLOURS
from dutyfree.report.tables import real
from dutyfree.report.text import count, percent, percents, seconds, steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One substrate in the ranked chart."""

    name: str
    number: str
    """Of trials, and of those that failed."""
    time: str
    note: str
    """Tax and first result."""
    segments: Sequence[tuple[str, str, float]]
    """Part, colour, and per cent of the chart's width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """The parts of the first screen."""

    sentence: str
    saving: str
    chart: str
    """The chart's title."""
    bars: Sequence[Bar]
    legend: Sequence[tuple[str, str]]


def front(found: Sequence[Result], scale: Scale | None = None, *, manifest: Mapping[str, Any] | None = None) -> Front:
    """The longest trajectories of the most demanding tier; where none were measured, its cold starts."""
    rows = _ranked(found)
    if not rows:
        return Front(sentence="Nothing succeeded in this run.", saving="", chart="", bars=(), legend=())
    key = rows[0].key
    crowd = f", {key.parallel} at once" if key.parallel > 1 else ""
    return Front(
        sentence=_sentence(rows, scale or Scale()),
        saving=_saving(rows),
        chart=f"One rollout on {key.tier}, {steps(key.steps)}{crowd}: mean time, the fastest first",
        bars=[
            _bar(r, max(sum(parts(r).values()) for r in rows), found, stocks(manifest) if manifest else {})
            for r in rows
        ],
        legend=tuple(PART_COLOURS.items()),
    )


def _ranked(found: Sequence[Result]) -> list[Result]:
    rows = [r for r in real(found) if r.cost]
    tier = max((r.key.tier for r in rows if r.key.steps), default=max((r.key.tier for r in rows), default=""))
    length = max((r.key.steps for r in rows if r.key.tier == tier), default=0)
    return sorted(
        (r for r in rows if (r.key.tier, r.key.steps) == (tier, length)),
        key=lambda r: r.cost.seconds if r.cost else 0.0,
    )


def _rivals(rows: Sequence[Result]) -> list[Result]:
    """Those about which something can be concluded, the reference apart."""
    return [r for r in rows if r.key.substrate != REFERENCE and len(r.times) >= FEW]


def _sentence(rows: Sequence[Result], scale: Scale) -> str:
    rivals = _rivals(rows)
    if len(rivals) < 2:
        best = max((len(r.times) for r in rows), default=0)
        return (
            f"Too few trials to conclude anything: comparing two substrates needs {FEW} of each that succeed, and the "
            f"most here is {best}. The numbers below are first looks."
        )
    fast, slow = rivals[0], rivals[-1]
    value, interval = over(slow, fast)
    said = verdict(None if interval is None else (interval[0] - 1, interval[1] - 1))
    failed = max(slow.failed / slow.n, fast.failed / fast.n)
    if not failed and (interval is None or said != "slower"):
        return (
            f"No difference seen between {', '.join(r.title for r in rivals)}: in {min(len(r.times) for r in rivals)} "
            f"trials or more of each, the interval of the ratio holds 1."
        )
    what = f"{fast.key.steps}-step rollout" if fast.key.steps else "cold start"
    text = f"A {what} of {fast.key.tier} takes {_paid(slow)} on {slow.title} and {_paid(fast)} on {fast.title}"
    if failed:
        shares = " and ".join(f"{r.failed} of {r.n} on {r.title}" for r in (slow, fast))
        text += f", the time of failed trials included ({shares} failed)."
    elif interval is not None:
        text += f": {value:.1f} × [{interval[0]:.1f}, {interval[1]:.1f}], n={slow.n} and {fast.n}."
    return text + (_hours(slow, fast, scale) if fast.key.steps == STEPS else "")


def _paid(r: Result) -> str:
    return seconds(r.cost.seconds if r.cost else None)


def _hours(slow: Result, fast: Result, scale: Scale) -> str:
    hours = [worker_hours(1_000_000, r.cost.seconds) for r in (slow, fast) if r.cost]
    prices = [f"{h * scale.price:,.0f} {scale.currency}" for h in hours]
    return (
        f" A million of them cost {count(hours[0])} and {count(hours[1])} worker-hours, {prices[0]} and {prices[1]} at "
        f"{scale.price:.2f} {scale.currency} an hour."
    )


def _saving(rows: Sequence[Result]) -> str:
    """Which part of the difference comes from where: actions, or everything around them."""
    rivals = _rivals(rows)
    if len(rivals) < 2:
        return ""
    fast, slow = parts(rivals[0]), parts(rivals[-1])
    actions = slow["added to actions"] - fast["added to actions"]
    around = slow["creation to removal"] - fast["creation to removal"]
    number = rivals[0].key.steps
    each = f" ({seconds(actions / number)} for each of {number})" if number else ""
    return (
        _share(rivals[0], rivals[-1])
        + f"Of the difference between {rivals[-1].title} and {rivals[0].title}, {seconds(actions)} is in the actions{each} "
        f"and {seconds(around)} in creating, preparing and removing the sandbox once. Reuse of sandboxes saves only the "
        "second."
    )


def _share(fast: Result, slow: Result) -> str:
    """The place of all this in a rollout that waits for a model: nobody should take a tax for a rollout's whole time."""
    if not fast.key.steps or not fast.cost or not slow.cost:
        return ""
    think = THINK_MEAN_S * fast.key.steps
    shares = [f"{r.cost.seconds / (r.cost.seconds + think):.1%} on {r.title}" for r in (slow, fast) if r.cost]
    return (
        f"Real agents' models think for {THINK_MEAN_S:.1f} s before an action (the mean of 320 rollouts): with that, all of "
        f"these times are {' and '.join(shares)} of a rollout's wall time. "
    )


def _bar(r: Result, widest: float, found: Sequence[Result], stock: Mapping[tuple[str, str], int | None]) -> Bar:
    mine = parts(r)
    cold = next(
        (o for o in real(found) if o.title == r.title and o.key.tier == "T0" and not o.key.steps and o.first_result),
        None,
    )
    notes = ["the reference" if r.key.substrate == REFERENCE else _tax(r)]
    if cold is not None and cold.first_result is not None:
        ready = stock.get((r.key.substrate, r.key.dispatch))
        from_stock = f" from a stock of {ready}" if ready else ""
        notes.append(f"first result after {seconds(cold.first_result.p50)}{from_stock}")
    return Bar(
        name=r.title,
        number=f"n={r.n}" + (f", {r.failed} failed" if r.failed else ""),
        time=_paid(r),
        note="; ".join(notes),
        segments=[
            (name, shade, round(100 * max(0.0, mine[name]) / widest, 2) if widest else 0.0)
            for name, shade in PART_COLOURS.items()
        ],
    )


def _tax(r: Result) -> str:
    if r.tax is None:
        return "no host to compare with"
    if r.tax_ci95 is None or len(r.times) < FEW:
        return f"tax {percent(r.tax)}, n={r.n} settles nothing"
    said = verdict(r.tax_ci95)
    if said == "no difference seen":
        return f"no difference from the host seen [{percents(r.tax_ci95)}]"
    return f"tax {percent(r.tax)} [{percents(r.tax_ci95)}]"
