"""Figure 6: worker-hours at training scale."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dutyfree.meter.projection import STEPS, curves
from dutyfree.meter.projection import worker_hours as hours_of
from dutyfree.meter.summary import Result
from dutyfree.report.parts import parts
from dutyfree.report.scale import alone
from dutyfree.report.style import INK, PART_COLOURS, figure, name_rows
from dutyfree.report.text import count


def worker_hours(found: Sequence[Result]) -> Figure | None:
    """Fig 6: per million trajectories, by what is paid for. Other numbers of trajectories are in table 2: they scale."""
    tier = max((r.key.tier for r in found if r.key.steps and r.summary), default=None)
    lines = curves(found, tier, parallel=alone(found)) if tier else []
    if not lines:
        return None
    made, (axes,) = figure(8.6, max(2.6, 1.6 + 0.36 * len(lines)))
    shares = {r.title: parts(r) for r in found if r.key.tier == tier and r.key.steps == lines[0].longest and r.summary}
    for y, curve in enumerate(reversed(lines)):
        total, left = hours_of(1_000_000, curve.seconds(STEPS)), 0.0
        mine = shares.get(curve.name, {})
        whole = sum(mine.values())
        for part, shade in PART_COLOURS.items():
            # Failures' time is in the total and in no part: the last part ends where the total does.
            hours = total * max(0.0, mine[part]) / whole if whole else 0.0
            axes.barh(y, hours, 0.62, left=left, color=shade, label=None if y else part)
            left += hours
        reach = total
        if curve.interval is not None:
            low, high = (hours_of(1_000_000, end) for end in curve.interval)
            axes.plot([low, high], [y, y], color=INK, lw=1.6)
            reach = max(total, high)
        axes.annotate(
            f"{count(total)} h", (reach, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
            color=INK,
        )  # fmt: skip
    name_rows(axes, [f"{curve.name}  n={curve.n}" for curve in lines], first=True)
    axes.margins(x=0.14)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel(f"worker-hours per 1,000,000 trajectories of {STEPS} steps ({tier})")
    made.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return made
