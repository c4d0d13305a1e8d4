"""A simulation for people: its table and its figure, from the document that `dutyfree simulate --json` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from dutyfree.report.style import appearance, drawing, figure, save
from dutyfree.report.text import NONE, Table, count, seconds

_LEAST_S = 1e-4


def write(document: Mapping[str, Any], directory: Path) -> Path:
    """`simulation.json`, `simulation.svg` and `simulation.png`; the path of the figure."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "simulation.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    with drawing():
        return save(draw(document), directory, "simulation")


def table(document: Mapping[str, Any]) -> Table:
    """One row per policy."""
    rows = [
        [
            one["policy"],
            seconds(one["readiness_total_s"]),
            seconds(one["readiness_p50_s"]),
            seconds(one["readiness_p95_s"]),
            f"{one['times_less']:.2f} ×" if one["times_less"] else NONE,
            f"{one['hit_rate']:.1%}",
            f"{one['claim_rate']:.1%}",
            seconds(one["wait_mean_s"]),
            seconds(one["delay_mean_s"]),
            count(one["builds"]),
            seconds(one["makespan_s"]),
        ]
        for one in document["policies"]
    ]
    columns = (
        "policy",
        "readiness paid",
        "p50",
        "p95",
        "less",
        "hits",
        "claims",
        "queue",
        "queue + ready",
        "built",
        "makespan",
    )
    note = (
        f"Were each state built once, and its first group the only one to wait: {seconds(document['once_s'])} of readiness. "
        "Readiness: from a node's slot to the wanted state. Less: than round robin. Hits: nothing was missing. Claims: by an "
        "idle sandbox. Queue, queue + ready: mean wait for a slot, and with readiness."
    )
    return Table(title=_title(document["scenario"]), columns=columns, rows=rows, note=note)


def draw(document: Mapping[str, Any]) -> Figure:
    """Left: what each policy paid in all, queue beside readiness. Right: how readiness is distributed."""
    policies = document["policies"]
    look = appearance(one["policy"] for one in policies)
    made, (left, right) = figure(10.5, max(3.4, 1.6 + 0.42 * len(policies)), 2)
    for y, one in enumerate(reversed(policies)):
        colour, _ = look[one["policy"]]
        left.barh(y, one["readiness_mean_s"], 0.62, color=colour)
        left.barh(y, one["wait_mean_s"], 0.62, left=one["readiness_mean_s"], color=colour, alpha=0.3)
        less = f"  {one['times_less']:.1f} × less readiness" if one["times_less"] and one["times_less"] > 1.05 else ""
        left.text(one["delay_mean_s"], y, less, va="center")
        values = [max(value, _LEAST_S) for value in one["readiness_curve_s"]]
        right.plot(document["curve_percentiles"], values, color=colour, lw=1.6, label=one["policy"])
    left.set_yticks(range(len(policies)), [one["policy"] for one in reversed(policies)])
    left.grid(visible=False, axis="y")
    left.margins(x=0.28)
    left.set_xlim(left=0)
    left.set_xlabel("seconds per rollout, mean: readiness, and (pale) waiting for a slot")
    left.set_title(_title(document["scenario"]))
    right.set_yscale("log")
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    right.yaxis.set_minor_formatter(NullFormatter())
    right.set_xlabel("percentile of rollouts")
    right.set_title("Readiness paid (log)")
    right.legend(loc="upper left")
    return made


def _title(scenario: Mapping[str, Any]) -> str:
    rollouts = scenario["groups"] * scenario["group"]
    return f"{rollouts:,} rollouts of {scenario['tasks']:,} tasks on {scenario['nodes']:,} nodes"
