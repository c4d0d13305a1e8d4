"""Figures 1, 4 and 5: whole rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from dutyfree.meter.record import COMPONENTS
from dutyfree.meter.summary import Result
from dutyfree.report.cold_figures import time_axis
from dutyfree.report.style import COMPONENT_COLOURS, INK, appearance, figure
from dutyfree.report.tables import real
from dutyfree.report.text import seconds

_ABREAST = 6
"""Panels of figure 4 in a row, so that its words stay readable on a page."""


def decomposition(found: Sequence[Result]) -> Figure | None:
    """Fig 1: stacked components of the longest trajectories, with and without the commands themselves."""
    rows = _rollouts(found)
    if not rows:
        return None
    longest = max(r.key.steps for r in rows)
    rows = sorted((r for r in rows if r.key.steps == longest), key=lambda r: r.summary.p50 if r.summary else 0.0)
    made, (left, right) = figure(10.5, 1.9 + 0.5 * len(rows), 2)
    _stack(left, rows, COMPONENTS)
    for y, r in enumerate(reversed(rows)):
        if r.summary:
            reach = max(0.0, r.summary.p95 - r.summary.p50)
            left.errorbar(r.summary.p50, y, xerr=[[0.0], [reach]], fmt="o", ms=4, color=INK, elinewidth=1, capsize=3)
    added = [name for name in COMPONENTS if name != "run"]
    _stack(right, rows, added)
    for y, r in enumerate(reversed(rows)):
        total = sum(r.decomposition[name] for name in added)
        right.annotate(
            seconds(total), (total, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK
        )
    right.set_yticklabels([""] * len(rows))
    left.set_xlim(0, 1.05 * max(max(sum(r.decomposition.values()), r.summary.p95 if r.summary else 0.0) for r in rows))
    right.set_xlim(0, 1.2 * max(sum(r.decomposition[name] for name in added) for r in rows))
    left.set_title(f"{rows[0].key.tier}, {longest} steps: everything")
    right.set_title("without the commands' own time (run)")
    handles, labels = left.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=len(COMPONENTS), columnspacing=1.2, handlelength=1.2)
    return made


def composition(found: Sequence[Result]) -> Figure | None:
    """Fig 4: shares of each component by length."""
    rows = _rollouts(found)
    if not rows:
        return None
    names = list(dict.fromkeys(r.title for r in rows))
    lengths = sorted({r.key.steps for r in rows})
    lines = -(-len(names) // _ABREAST)
    columns = -(-len(names) // lines)
    made, panels = figure(max(6.4, 1.4 + 1.9 * columns), 0.5 + 3.0 * lines, columns, lines)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(panels, names, strict=False):
        mine = {r.key.steps: r.decomposition for r in rows if r.title == name}
        for x, length in enumerate(lengths):
            bottom = 0.0
            total = sum(mine[length].values()) if length in mine else 0.0
            for part in COMPONENTS:
                share = mine[length][part] / total if total else 0.0
                label = part if x == 0 and axes is panels[0] else None
                axes.bar(x, share, 0.7, bottom=bottom, color=COMPONENT_COLOURS[part], label=label)
                if share >= 0.06:
                    axes.text(
                        x, bottom + share / 2, f"{share:.0%}", ha="center", va="center", fontsize=7.5, color="black"
                    )
                bottom += share
        axes.set_xticks(range(len(lengths)), [str(n) for n in lengths])
        axes.set_title(name)
        axes.set_ylim(0, 1)
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if axes not in panels[::columns]:
            axes.set_yticklabels([])
    made.supylabel(f"share of the rollout, {rows[0].key.tier}", fontsize=9.5, color=INK)
    made.supxlabel("actions per trajectory", fontsize=9.5, color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles[::-1], labels[::-1], loc="outside right center")
    return made


def completion(found: Sequence[Result]) -> Figure | None:
    """Fig 5: time by number of actions, a panel for each tier."""
    rows = [r for r in real(found) if r.key.steps]
    if not rows:
        return None
    names = list(dict.fromkeys(r.title for r in rows))
    tiers = sorted({r.key.tier for r in rows})
    look = appearance(r.title for r in real(found))
    made, panels = figure(1.0 + 3.2 * len(tiers), 3.7, len(tiers))
    for axes, tier in zip(panels, tiers, strict=True):
        lengths = sorted({r.key.steps for r in rows if r.key.tier == tier})
        for i, name in enumerate(names):
            mine = sorted((r for r in rows if r.title == name and r.key.tier == tier), key=lambda r: r.key.steps)
            # Moved apart a little, so that whiskers of equal substrates do not hide each other.
            xs = [r.key.steps * 1.05 ** (i - (len(names) - 1) / 2) for r in mine]
            ys = [r.summary.p50 for r in mine if r.summary]
            up = [max(0.0, r.summary.p95 - r.summary.p50) for r in mine if r.summary]
            colour, marker = look[name]
            axes.errorbar(
                xs, ys, yerr=[[0.0] * len(ys), up], color=colour, marker=marker, ms=5, lw=1.5, capsize=3,
                label=name if axes is panels[0] else None,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(lengths, [str(n) for n in lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.set_title(tier)
        axes.margins(x=0.12, y=0.12)
        time_axis(axes, "y")
    panels[0].set_ylabel("rollout, p50 (log)")
    made.supxlabel("actions per trajectory (log)", fontsize=9.5, color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=min(6, len(names)))
    return made


def _stack(axes: Axes, rows: Sequence[Result], parts: Sequence[str]) -> None:
    for y, r in enumerate(reversed(rows)):
        left = 0.0
        for part in parts:
            label = part if y == 0 else None
            axes.barh(y, r.decomposition[part], 0.62, left=left, color=COMPONENT_COLOURS[part], label=label)
            left += r.decomposition[part]
    axes.set_yticks(range(len(rows)), [r.title for r in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axes.set_xlabel("time per rollout")


def _rollouts(found: Sequence[Result]) -> list[Result]:
    """Trajectories on the most demanding tier that has any."""
    rows = [r for r in real(found) if r.key.steps]
    tier = max((r.key.tier for r in rows), default="")
    return [r for r in rows if r.key.tier == tier]
