"""Sizes and foreign text, as people read and write them. Prints nothing itself."""

from __future__ import annotations

import argparse

from dutyfree.core.text import printable

__all__ = ["human", "printable", "size"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human(size_bytes: float) -> str:
    """A size for people."""
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:
        size_bytes /= 1024
        unit += 1
    return f"{size_bytes:.0f} {_UNITS[unit]}" if unit == 0 else f"{size_bytes:.1f} {_UNITS[unit]}"


def size(text: str) -> int:
    """A size as people write it, for argparse."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    scale = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
    if unit not in scale or not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a number, and K, M, G or T")
    return int(number) << scale[unit]
