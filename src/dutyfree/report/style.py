"""How figures look: one palette that survives colour blindness, one size of text, one way to save.

Colours are those of Okabe and Ito. Ink is a colour of its own, which the html page replaces by the text colour of the
reader's theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK = "#1a1b1c"
FAINT = "#8c8d8e"

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

_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B4C9A", "#8C564B")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
_HOST = "#757575"

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


def appearance(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each substrate: the same in all figures of a report; the host is always grey."""
    names = sorted(set(names))
    others = [name for name in names if name != "host"]
    look = {name: (_PALETTE[i % 8], _MARKERS[(i + i // 8) % 8]) for i, name in enumerate(others)}
    return {name: look.get(name, (_HOST, "h")) for name in names}


def figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, from left to right and top to bottom. Belongs to no window and to no global state."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, list(made.subplots(rows, columns, squeeze=False).flat)


def save(made: Figure, directory: Path, name: str) -> Path:
    """Write `name.svg` and `name.png`; the path of the first."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.svg"
    made.savefig(path, transparent=True, metadata={"Date": None})
    made.savefig(directory / f"{name}.png", dpi=150, facecolor="white")
    return path


def inline(path: Path) -> str:
    """A saved svg as it stands in the page: no prologue, ink in the colour of the reader's theme."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    return text.replace(INK, "currentColor")
