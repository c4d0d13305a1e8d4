"""The look of figures: one palette for each meaning, one size of text, one way to save.

Components of a rollout have the colours of Okabe and Ito, which survive colour blindness. Substrates
have none: they are rows with a name, the reference grey. Ink and paper are variables of the svg, so a
figure follows the reader's theme inside the page and as an image of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, PAPER, FAINT = "#1a1b1c", "#fffffe", "#8c8d8e"
ROW, REFERENCE_ROW = "#2F86C8", "#8C8D8E"
LENGTHS = ("#86B7DB", "#3C8DC4", "#004B78", "#D55E00", "#009E73", "#CC79A7")
"""Of a second dimension in rows: short, middle and long trajectories."""

COMPONENT_COLOURS = {
    "create": "#E69F00",
    "ready": "#F0E442",
    "setup": "#56B4E9",
    "dispatch": "#D55E00",
    "run": "#BDBDBD",
    "orchestration": "#CC79A7",
    "reset": "#009E73",
    "destroy": "#0072B2",
}

PART_COLOURS = {"host's own actions": "#BDBDBD", "added to actions": "#D55E00", "creation to removal": "#56B4E9"}
"""What a rollout is made of when the host's same actions are taken for the work itself."""

_THEMES = "svg{--ink:#1a1b1c;--paper:#fff}@media(prefers-color-scheme:dark){svg{--ink:#e8e9ea;--paper:#16181a}}"

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # Names inside the svg come from this, so the same records give the same file.
    "svg.hashsalt": "dutyfree",
}


@contextmanager
def drawing() -> Iterator[None]:
    """The style, for as long as the block draws."""
    with mpl.rc_context(_RC):
        yield


def figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, from left to right and top to bottom. Belongs to no window and to no global state."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, list(made.subplots(rows, columns, squeeze=False).flat)


def appearance(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of a few series that are drawn as lines."""
    return {
        name: (tuple(COMPONENT_COLOURS.values())[::-1][i % 8], "osD^vPX*"[i % 8])
        for i, name in enumerate(sorted(set(names)))
    }


def name_rows(axes: Axes, names: Sequence[str], *, first: bool) -> None:
    """A row for each name, from the top; written at the first panel only."""
    axes.set_yticks(range(len(names)), list(reversed(names)) if first else [""] * len(names))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="y")


def save(made: Figure, directory: Path, name: str) -> Path:
    """Write `name.svg` and `name.png`; the path of the first."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.svg"
    made.savefig(path, metadata={"Date": None})
    text = path.read_text(encoding="utf-8").replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    text = text.replace("<defs>", f"<style>{_THEMES}</style><defs>", 1)
    path.write_text(text, encoding="utf-8")
    made.savefig(directory / f"{name}.png", dpi=110, facecolor="white")
    return path


def inline(path: Path) -> str:
    """A saved svg as it stands in the page: no prologue, ink and paper those of the page."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :].replace(f"<style>{_THEMES}</style>", "", 1)
