"""Figures 1 to 6, each from results alone. A figure whose data was not measured is left out, and the report says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from dutyfree.meter.summary import Result
from dutyfree.report import cold_figures, rollout_figures, scale_figure
from dutyfree.report.style import drawing, save


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """One figure of the report."""

    number: int
    title: str
    caption: str
    path: Path | None
    """The svg; None: its data was not measured."""


_FIGURES: tuple[tuple[str, str, str, Callable[[Sequence[Result]], Figure | None]], ...] = (
    (
        "decomposition",
        "Where rollout time goes (RQ1)",
        (
            "Mean components of the longest trajectories on the most demanding tier. Dispatch is what a substrate says of "
            "itself; on the right its time over the host's same actions, whoever says what, and all that is not an action."
        ),
        rollout_figures.decomposition,
    ),
    (
        "cold-start",
        "Cold start by substrate and tier (RQ2)",
        "Median from the request to the end of set-up, log scale. An open dot has too few trials for an interval.",
        cold_figures.medians,
    ),
    (
        "cold-start-distribution",
        "Distribution of cold starts (RQ2)",
        "Every trial is a dot; the long tick is the median, the short one p95 (from 20 trials on). Log scale.",
        cold_figures.distribution,
    ),
    (
        "composition",
        "Composition by length of the trajectory (RQ3)",
        "Shares of the mean rollout: fixed costs shrink as actions are added.",
        rollout_figures.composition,
    ),
    (
        "completion",
        "Completion time by number of actions (RQ3)",
        "Medians, log scale. An open dot has too few trials for an interval.",
        rollout_figures.completion,
    ),
    (
        "worker-hours",
        "Worker-hours at training scale (RQ4)",
        (
            "N · T(150) / 3600, T the mean time paid per success. Grey is the host's time for the same actions; the line is "
            "the 95 % interval, from 30 trials on."
        ),
        scale_figure.worker_hours,
    ),
)


def draw(found: Sequence[Result], directory: Path) -> list[Drawn]:
    """All figures, as svg and png in `directory`."""
    drawn = []
    for number, (name, title, caption, make) in enumerate(_FIGURES, start=1):
        with drawing():
            made = make(found)
            path = save(made, directory, f"fig{number}-{name}") if made is not None else None
        drawn.append(Drawn(number=number, title=title, caption=caption, path=path))
    return drawn
