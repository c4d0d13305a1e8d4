"""Numbers and tables for people: one format, used by the markdown, the html and the command line alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NONE = "–"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A titled table; cells are text already."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def to_markdown(self) -> str:
        """GitHub's dialect, numbers to the right."""
        widths = [max([len(c), 3, *(len(row[i]) for row in self.rows)]) for i, c in enumerate(self.columns)]
        rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
        body = [_line(self.columns, widths), "| " + " | ".join(rule) + " |"]
        body += [_line([cell.replace("|", "\\|") for cell in row], widths) for row in self.rows]
        note = f"\n\n{self.note}" if self.note else ""
        return f"### {self.title}\n\n" + "\n".join(body) + note + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return "| " + " | ".join(padded) + " |"


def seconds(value: float | None) -> str:
    """Three digits and the unit that fits."""
    if value is None:
        return NONE
    size = abs(value)
    if not math.isfinite(size):
        return "not reached"
    if size == 0:
        return "0"
    if size < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if size < 0.9995:
        return f"{value * 1e3:.3g} ms" if size < 0.0999 else f"{value * 1e3:.0f} ms"
    return f"{value:.3g} s" if size < 99.95 else f"{value:,.0f} s"


def percent(value: float | None) -> str:
    """Format a number with its sign; large ones without decimals."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "not reached"
    return f"{value * 100:+,.0f} %" if abs(value) >= 10 else f"{value * 100:+.1f} %"


def percents(low_high: tuple[float, float] | None) -> str:
    """`low … high %`."""
    return NONE if low_high is None else f"{percent(low_high[0]).removesuffix(' %')} … {percent(low_high[1])}"


def count(value: float) -> str:
    """A large number with its thousands apart; small ones keep a digit."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def interval(low_high: tuple[float, float] | None) -> str:
    """`low … high` in seconds."""
    return NONE if low_high is None else f"{seconds(low_high[0])} … {seconds(low_high[1])}"


def steps(number: int) -> str:
    """A length, or the cold start."""
    return "cold start" if number == 0 else f"{number} steps"
