"""Figures 2 and 3: cold starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from dutyfree.meter.summary import Result
from dutyfree.report.style import INK, appearance, figure
from dutyfree.report.tables import real
from dutyfree.report.text import seconds


def medians(found: Sequence[Result]) -> Figure | None:
    """Fig 2: p50 by substrate and tier."""
    rows, names, tiers = _cold(found)
    if not rows:
        return None
    look = appearance(r.title for r in real(found))
    made, panels = figure(1.2 + 3.1 * len(tiers), 1.1 + 0.34 * len(names), len(tiers))
    for axes, tier in zip(panels, tiers, strict=True):
        mine = {r.title: r.summary for r in rows if r.key.tier == tier and r.summary}
        for y, name in enumerate(reversed(names)):
            if (one := mine.get(name)) is None:
                continue
            axes.barh(y, one.p50, 0.68, color=look[name][0])
            upper = max(0.0, one.p95 - one.p50)
            axes.errorbar(one.p50, y, xerr=[[0.0], [upper]], fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
            axes.annotate(
                seconds(one.p50), (max(one.p95, one.p50), y), xytext=(5, 0), textcoords="offset points",
                ha="left", va="center", fontsize=8, color=INK,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_title(tier)
        name_rows(axes, names, first=axes is panels[0])
        axes.set_xlim(min(s.p50 for s in mine.values()) / 3, max(max(s.p95, s.p50) for s in mine.values()) * 8)
        time_axis(axes, "x")
    made.supxlabel("cold start, p50 (log); whiskers: p95", fontsize=9.5, color=INK)
    return made


def distribution(found: Sequence[Result]) -> Figure | None:
    """Fig 3: every cold start."""
    rows, names, tiers = _cold(found)
    if not rows:
        return None
    look = appearance(r.title for r in real(found))
    made, panels = figure(1.2 + 3.1 * len(tiers), 1.3 + 0.5 * len(names), len(tiers))
    rng = np.random.default_rng(0)
    for axes, tier in zip(panels, tiers, strict=True):
        for y, name in enumerate(reversed(names)):
            result = next((r for r in rows if r.title == name and r.key.tier == tier), None)
            if result is None or result.summary is None:
                axes.annotate("not measured", (0.5, y), xycoords=("axes fraction", "data"), ha="center", va="center")
                continue
            times, s = np.asarray(result.times), result.summary
            low, high = np.quantile(times, [0.25, 0.75])
            axes.barh(y, high - low, 0.5, left=low, color=look[name][0], alpha=0.3)
            axes.plot(times, y + rng.uniform(-0.18, 0.18, len(times)), ".", ms=4, color=look[name][0], alpha=0.7)
            axes.plot([s.p50, s.p50], [y - 0.32, y + 0.32], color=INK, lw=1.8)
            axes.plot([s.p95, s.p95], [y - 0.2, y + 0.2], color=INK, lw=1)
        axes.set_xscale("log")
        axes.set_title(tier)
        name_rows(axes, names, first=axes is panels[0])
        every = [t for r in rows if r.key.tier == tier for t in r.times]
        axes.set_xlim(min(every) / 1.3, max(every) * 1.3)
        time_axis(axes, "x")
    made.supxlabel("cold start (log)", fontsize=9.5, color=INK)
    return made


def name_rows(axes: Axes, names: Sequence[str], *, first: bool) -> None:
    """A row for each name, from the top; written at the first panel only."""
    axes.set_yticks(range(len(names)), list(reversed(names)) if first else [""] * len(names))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="y")


def time_axis(axes: Axes, which: str) -> None:
    """Ticks as times with their unit, few enough to be read."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    factors = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
    ticks = [f * 10.0**e for e in range(-9, 7) for f in factors if low <= f * 10.0**e <= high]
    if len(ticks) >= 2:
        limit = 5 if which == "x" else 8
        axis.set_ticks(ticks[:: -(-len(ticks) // limit)])
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axis.set_minor_locator(NullLocator())


def _cold(found: Sequence[Result]) -> tuple[list[Result], list[str], list[str]]:
    """Cold starts, the substrates' names with the fastest of the first tier first, the tiers."""
    rows = [r for r in real(found) if r.key.steps == 0]
    rows.sort(key=lambda r: (r.key.tier, r.summary.p50 if r.summary else np.inf))
    names = list(dict.fromkeys(r.title for r in rows))
    return rows, names, sorted({r.key.tier for r in rows})
