"""The README's figure, from the summary of one run of `make speed`.

Remake it: `python -m benchmarks.figure out/speed/summary.json docs/images/speed.svg`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

OURS, OTHERS, NOTHING = "#D55E00", "#0072B2", "#7F7F7F"
"""Ours, rivals, and no isolation at all: told apart also by the colour-blind."""

PANELS = {
    "from asking for a sandbox to its first result": (
        ("docker/run", "docker run", OTHERS),
        ("swe-rex/start", "SWE-ReX, local session", NOTHING),
        ("bwrap/true", "bubblewrap", OTHERS),
        ("native/create", "dutyfree native, from its stock", OURS),
        ("subprocess/true", "subprocess.run, no sandbox", NOTHING),
    ),
    "one more command": (
        ("docker/exec", "docker exec", OTHERS),
        ("swe-rex/action", "SWE-ReX, local session", NOTHING),
        ("native/run-list", "dutyfree native", OURS),
        ("subprocess/true", "subprocess.run, no sandbox", NOTHING),
    ),
}


def main() -> int:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    summary = json.loads(source.read_text())
    cells = {cell["name"]: cell for cell in summary["results"]}
    mpl.rcParams.update({"svg.fonttype": "path", "font.size": 10, "svg.hashsalt": "dutyfree"})
    figure, axes = plt.subplots(1, 2, figsize=(10, 2.7), sharex=True, layout="constrained")
    for axis, (title, rows) in zip(axes, PANELS.items(), strict=True):
        _panel(axis, title, [(cells[name], label, colour) for name, label, colour in rows if name in cells])
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None, dpi=150, facecolor="white")
    return 0


def _panel(axis: Any, title: str, rows: list[tuple[dict[str, Any], str, str]]) -> None:
    for place, (cell, _, colour) in enumerate(rows):
        p50_ms, p95_ms = cell["p50_s"] * 1e3, cell["p95_s"] * 1e3
        axis.barh(place, p50_ms, color=colour, height=0.62)
        axis.plot([p50_ms, p95_ms], [place, place], color="black", linewidth=1)
        axis.text(p95_ms * 1.15, place, f"{p50_ms:.3g} ms", va="center")
    axis.set_yticks(range(len(rows)), [label for _, label, _ in rows])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(0.5, 6000)
    axis.set_xlabel("milliseconds (log), median; line to p95")
    axis.set_title(title, fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
