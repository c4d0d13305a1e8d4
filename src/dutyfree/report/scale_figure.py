"""Figure 6: worker-hours at training scale."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from dutyfree.meter.projection import STEPS, curves
from dutyfree.meter.projection import worker_hours as hours_of
from dutyfree.meter.summary import Result
from dutyfree.report.style import COMPONENT_COLOURS, INK, appearance, figure
from dutyfree.report.tables import real
from dutyfree.report.text import count

NUMBERS = (10_000, 30_000, 100_000, 300_000, 1_000_000)


def worker_hours(found: Sequence[Result]) -> Figure | None:
    """Fig 6."""
    tier = max((r.key.tier for r in found if r.key.steps and r.summary), default=None)
    lines = curves(found, tier) if tier else []
    if not lines:
        return None
    look = appearance(r.title for r in real(found))
    made, (left, right) = figure(10.5, max(3.8, 2.2 + 0.4 * len(lines)), 2)
    for curve in reversed(lines):
        colour, marker = look[curve.name]
        hours = [hours_of(n, curve.seconds(STEPS)) for n in NUMBERS]
        left.plot(NUMBERS, hours, color=colour, marker=marker, ms=5, lw=1.5, label=curve.name)
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xticks([10_000, 100_000, 1_000_000], ["10,000", "100,000", "1,000,000"])
    left.xaxis.set_minor_formatter(NullFormatter())
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("trajectories (log)")
    left.set_ylabel("worker-hours (log)")
    left.set_title(f"{tier}, {STEPS} steps")
    left.minorticks_off()
    left.legend(loc="upper left")
    shares = {r.title: r for r in found if r.key.tier == tier and r.key.steps == lines[0].longest}
    for y, curve in enumerate(reversed(lines)):
        total = hours_of(1_000_000, curve.seconds(STEPS))
        result = shares.get(curve.name)
        whole = sum(result.decomposition.values()) if result else 0.0
        own = total * (result.decomposition["run"] / whole if result and whole else 1.0)
        right.barh(y, own, 0.62, color=COMPONENT_COLOURS["run"], label="commands' own time (run)" if y == 0 else None)
        right.barh(
            y, total - own, 0.62, left=own, color=COMPONENT_COLOURS["dispatch"],
            label="paid on top" if y == 0 else None,
        )  # fmt: skip
        right.annotate(
            f"{count(total)} h",
            (total, y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=INK,
        )
    right.set_yticks(range(len(lines)), [curve.name for curve in reversed(lines)])
    right.set_ylim(-0.6, len(lines) + 0.3)
    right.margins(x=0.18)
    right.grid(visible=False, axis="y")
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    right.set_xlabel("worker-hours")
    right.set_title("per 1,000,000 trajectories")
    right.legend(loc="upper right", ncols=2, fontsize=8.5)
    return made
