"""Figures 1, 4 and 5: whole rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from dutyfree.meter.record import COMPONENTS
from dutyfree.meter.summary import Result
from dutyfree.report.cold_figures import dot, labels, time_axis
from dutyfree.report.parts import parts
from dutyfree.report.style import COMPONENT_COLOURS, INK, LENGTHS, PART_COLOURS, figure, name_rows
from dutyfree.report.tables import real
from dutyfree.report.text import seconds

_ABREAST = 5
"""Panels of figure 4 in a row, so that its words stay readable on a page."""


def decomposition(found: Sequence[Result]) -> Figure | None:
    """Fig 1: the longest trajectories by component, and what is added to the host's same actions."""
    rows = _rollouts(found)
    if not rows:
        return None
    longest = max(r.key.steps for r in rows)
    rows = sorted((r for r in rows if r.key.steps == longest), key=lambda r: sum(r.decomposition.values()))
    made, (left, right) = figure(10.5, 1.9 + 0.42 * len(rows), 2)
    _stack(left, rows, [r.decomposition for r in rows], COMPONENT_COLOURS)
    left.set_title(f"{rows[0].key.tier}, {longest} steps: by component (means)")
    shares = [parts(r) for r in rows]
    added = {name: shade for name, shade in PART_COLOURS.items() if name != "host's own actions"}
    _stack(right, rows, [{name: max(0.0, share[name]) for name in added} for share in shares], added)
    for y, share in enumerate(reversed(shares)):
        total = sum(share[name] for name in added)
        right.annotate(
            seconds(total), (max(0.0, total), y), xytext=(5, 0), textcoords="offset points", va="center",
            fontsize=8.5, color=INK,
        )  # fmt: skip
    right.set_yticklabels([""] * len(rows))
    right.set_xlim(0, 1.2 * max([*(sum(share[name] for name in added) for share in shares), 1e-9]))
    right.set_title("over the host's same actions")
    handles, words = left.get_legend_handles_labels()
    more, their = right.get_legend_handles_labels()
    made.legend(handles + more, words + their, loc="outside lower center", ncols=5, columnspacing=1.2, handlelength=1.2)
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
    made, panels = figure(max(6.4, 1.4 + 1.9 * columns), 0.5 + 2.7 * lines, columns, lines)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(panels, names, strict=False):
        mine = {r.key.steps: r.decomposition for r in rows if r.title == name}
        _shares(axes, [mine.get(length, {}) for length in lengths])
        axes.set_xticks(range(len(lengths)), [str(n) for n in lengths])
        axes.set_title(labels([name], rows)[0])
        if axes not in panels[::columns]:
            axes.set_yticklabels([])
    made.supylabel(f"share of the rollout, {rows[0].key.tier}", fontsize=9.5, color=INK)
    made.supxlabel("actions per trajectory", fontsize=9.5, color=INK)
    handles, words = panels[0].get_legend_handles_labels()
    made.legend(handles[::-1], words[::-1], loc="outside right center")
    return made


def _shares(axes: Axes, columns: Sequence[Mapping[str, float]]) -> None:
    for x, mine in enumerate(columns):
        bottom, total = 0.0, sum(mine.values())
        for part in COMPONENTS:
            share = mine[part] / total if total else 0.0
            axes.bar(x, share, 0.7, bottom=bottom, color=COMPONENT_COLOURS[part], label=None if x else part)
            if share >= 0.06:
                axes.text(x, bottom + share / 2, f"{share:.0%}", ha="center", va="center", fontsize=7.5, color="black")
            bottom += share
    axes.set_ylim(0, 1)
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def completion(found: Sequence[Result]) -> Figure | None:
    """Fig 5: time by number of actions: a row for each substrate, a panel for each tier, a dot for each length."""
    rows = [r for r in real(found) if r.key.steps]
    if not rows:
        return None
    lengths = sorted({r.key.steps for r in rows})
    ranked = sorted(rows, key=lambda r: (r.key.tier, r.key.steps, r.summary.p50 if r.summary else 0.0), reverse=True)
    names = list(dict.fromkeys(r.title for r in ranked))[::-1]
    tiers = sorted({r.key.tier for r in rows})
    made, panels = figure(1.6 + 2.9 * len(tiers), 1.6 + 0.34 * len(names), len(tiers))
    for axes, tier in zip(panels, tiers, strict=True):
        for r in (r for r in rows if r.key.tier == tier):
            shade = LENGTHS[lengths.index(r.key.steps) % len(LENGTHS)]
            y = len(names) - 1 - names.index(r.title)
            if r.summary:
                dot(axes, r.summary.p50, y, r.summary.ci_p50, shade)
        axes.set_xscale("log")
        axes.set_title(tier)
        name_rows(axes, labels(names, rows), first=axes is panels[0])
        axes.margins(x=0.12)
        time_axis(axes, "x")
    for index, length in enumerate(lengths):
        panels[0].plot([], [], "o", color=LENGTHS[index % len(LENGTHS)], label=f"{length} actions")
    made.supxlabel("rollout, median (log); line: its 95 % interval", fontsize=9.5, color=INK)
    made.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(lengths))
    return made


def _stack(
    axes: Axes, rows: Sequence[Result], values: Sequence[Mapping[str, float]], colours: Mapping[str, str]
) -> None:
    for y, mine in enumerate(reversed(values)):
        left = 0.0
        for part, shade in colours.items():
            axes.barh(y, mine[part], 0.62, left=left, color=shade, label=None if y else part)
            left += mine[part]
    name_rows(axes, [labels([r.title], rows)[0] for r in rows], first=True)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axes.set_xlabel("time per rollout")


def _rollouts(found: Sequence[Result]) -> list[Result]:
    """Trajectories on the most demanding tier that has any."""
    rows = [r for r in real(found) if r.key.steps]
    tier = max((r.key.tier for r in rows), default="")
    return [r for r in rows if r.key.tier == tier]
