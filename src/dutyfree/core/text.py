"""Foreign text, made fit for people's terminals."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Text from elsewhere, without what a terminal would obey; `keep`: control characters that are wanted."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else "?" for c in text)
