"""The table of drivers and what they offer, as Markdown: from their own declarations, never from this machine."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from dutyfree.core.contract import Capabilities, Driver
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates.registry import drivers

HEAD = """\
# Substrates and what they offer

Written by `dutyfree doctor --markdown` (`make docs`) from the declarations of the drivers. The table shows what each
driver offers where everything it needs is installed. `dutyfree doctor` shows what this machine has, and why it lacks
the rest.
"""
COLUMNS = ("stream", "terminal", "shell", "forward", "users", "process_tree", "snapshot", "fork", "reset")
_TITLES = ("substrate", "dispatch", "isolation", "limits", *COLUMNS)


def table() -> str:
    """The page."""
    rows = [list(_TITLES), ["---"] * len(_TITLES)]
    notes: list[str] = []
    what: list[str] = []
    for name, driver in _loadable():
        what.append(f"- `{name}`: {driver.summary}")
        rows += [_row(name, offered) for offered in driver.declared()]
        notes += _notes(name, driver)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([HEAD, *map(_wrapped, what), "", *lines, "", "## Why not", "", *map(_wrapped, notes), ""])


def _wrapped(item: str) -> str:
    return textwrap.fill(item, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _loadable() -> Iterator[tuple[str, Driver]]:
    for name, load in drivers():
        try:
            yield name, load()
        except (Misuse, Unavailable):
            continue  # its extra is not installed here


def _row(name: str, offered: Capabilities) -> list[str]:
    limits = ", ".join(sorted(offered.limits)) or "–"
    marks = ["✓" if getattr(offered, column) else "–" for column in COLUMNS]
    return [f"`{name}`", offered.dispatch, offered.isolation, limits, *marks]


def _notes(name: str, driver: Driver) -> Iterator[str]:
    """Each reason once, with the dispatch mode where it holds for one only."""
    declared = driver.declared()
    seen: dict[tuple[str, str], list[str]] = {}
    for offered in declared:
        for field, why in offered.notes.items():
            seen.setdefault((field, why), []).append(offered.dispatch)
    for (field, why), modes in seen.items():
        mode = f", {modes[0]}" if len(modes) < len(declared) else ""
        yield f"- `{name}`{mode}: {field}: {why}"
