"""The command of an error's remedy: `make` in a checkout of dutyfree, something else for who installed a wheel."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
"""Root of the checkout, if this is one."""


def make(targets: str, otherwise: str | None = None, *, root: Path = ROOT) -> str:
    """`make TARGETS` in a checkout; elsewhere `otherwise`, or the same with the words that a checkout is needed."""
    if (root / "Makefile").is_file() and (root / "scripts").is_dir():
        return f"make {targets}".replace(" && ", " && make ")
    return otherwise or f"make {targets} (in a checkout of dutyfree)".replace(" && ", " && make ")
