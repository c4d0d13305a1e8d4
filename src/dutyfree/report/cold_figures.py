"""Figures 2 and 3: cold starts, a row for each substrate. Dots on logarithmic axes: the length of a bar would say nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from dutyfree.meter.stats import Interval
from dutyfree.meter.summary import REFERENCE, Result
from dutyfree.report.style import INK, REFERENCE_ROW, ROW, figure, name_rows
from dutyfree.report.tables import counted, real
from dutyfree.report.text import seconds


def medians(found: Sequence[Result]) -> Figure | None:
    """Fig 2: p50 by substrate and tier."""
    rows, names, tiers = _cold(found)
    if not rows:
        return None
    made, panels = figure(1.6 + 2.9 * len(tiers), 1.1 + 0.34 * len(names), len(tiers))
    for axes, tier in zip(panels, tiers, strict=True):
        mine = {r.title: r for r in rows if r.key.tier == tier}
        for y, name in enumerate(reversed(names)):
            if (r := mine.get(name)) is None or r.summary is None:
                continue
            reach = dot(axes, r.summary.p50, y, r.summary.ci_p50, colour(r))
            axes.annotate(
                seconds(r.summary.p50), (reach, y), xytext=(6, 0), textcoords="offset points",
                ha="left", va="center", fontsize=8, color=INK,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_title(tier)
        name_rows(axes, labels(names, rows), first=axes is panels[0])
        middle = [r.summary.p50 for r in mine.values() if r.summary]
        axes.set_xlim(min(middle) / 2, max(middle) * 9)
        time_axis(axes, "x")
    made.supxlabel("cold start, median (log); line: its 95 % interval", fontsize=9.5, color=INK)
    return made


def distribution(found: Sequence[Result]) -> Figure | None:
    """Fig 3: every cold start."""
    rows, names, tiers = _cold(found)
    if not rows:
        return None
    made, panels = figure(1.6 + 2.9 * len(tiers), 1.1 + 0.42 * len(names), len(tiers))
    rng = np.random.default_rng(0)
    for axes, tier in zip(panels, tiers, strict=True):
        for y, name in enumerate(reversed(names)):
            result = next((r for r in rows if r.title == name and r.key.tier == tier), None)
            if result is None or result.summary is None:
                axes.annotate("not measured", (0.5, y), xycoords=("axes fraction", "data"), ha="center", va="center")
                continue
            times, s = np.asarray(result.times), result.summary
            axes.plot(times, y + rng.uniform(-0.22, 0.22, len(times)), ".", ms=4.5, color=colour(result), alpha=0.6)
            axes.plot([s.p50, s.p50], [y - 0.36, y + 0.36], color=INK, lw=1.8)
            if s.p95 is not None and math.isfinite(s.p95):
                axes.plot([s.p95, s.p95], [y - 0.22, y + 0.22], color=INK, lw=1)
        axes.set_xscale("log")
        axes.set_title(tier)
        name_rows(axes, labels(names, rows), first=axes is panels[0])
        every = [t for r in rows if r.key.tier == tier for t in r.times]
        axes.set_xlim(min(every) / 1.3, max(every) * 1.3)
        time_axis(axes, "x")
    made.supxlabel("cold start (log)", fontsize=9.5, color=INK)
    return made


def dot(axes: Axes, x: float, y: float, interval: Interval | None, shade: str, marker: str = "o") -> float:
    """A point with its interval, where it has one; gives the right end."""
    if interval is None:
        axes.plot([x], [y], marker, ms=6, mfc="none", mec=shade, mew=1.3)
        return x
    high = interval[1] if math.isfinite(interval[1]) else x
    axes.plot([interval[0], high], [y, y], color=shade, lw=2, alpha=0.55, solid_capstyle="butt")
    axes.plot([x], [y], marker, ms=6, color=shade)
    return max(x, high)


def colour(result: Result) -> str:
    """Grey for the reference, one colour for all that is compared with it."""
    return REFERENCE_ROW if result.key.substrate == REFERENCE else ROW


def labels(names: Sequence[str], rows: Sequence[Result]) -> list[str]:
    """Names with their numbers of trials."""
    return [counted(name, [r for r in rows if r.title == name]) for name in names]


def time_axis(axes: Axes, which: str) -> None:
    """Ticks as times with their unit, few enough to be read."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    factors = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
    ticks = [f * 10.0**e for e in range(-9, 7) for f in factors if low <= f * 10.0**e <= high]
    if len(ticks) >= 2:
        axis.set_ticks(ticks[:: -(-len(ticks) // 4)])
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axis.set_minor_locator(NullLocator())


def _cold(found: Sequence[Result]) -> tuple[list[Result], list[str], list[str]]:
    """Cold starts, the substrates' names with the fastest of the first tier first, the tiers."""
    rows = [r for r in real(found) if r.key.steps == 0]
    rows.sort(key=lambda r: (r.key.tier, r.summary.p50 if r.summary else np.inf))
    names = list(dict.fromkeys(r.title for r in rows))
    return rows, names, sorted({r.key.tier for r in rows})
