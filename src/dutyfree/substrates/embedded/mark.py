"""What a machine is called: with its owner in the name, which is all that outlives a client that was killed."""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.substrates.hosted.substrate import NAME_LABEL
from dutyfree.substrates.sweep import OWNER_LABEL


def machine_name(marks: Mapping[str, str]) -> str:
    """A sandbox's name and its owner's mark."""
    return f"{marks[NAME_LABEL]}.{marks[OWNER_LABEL]}"


def owner_in(name: str | None) -> str | None:
    """The owner's mark in such a name; None if it is somebody else's machine."""
    head, dot, owner = (name or "").partition(".")
    return owner if dot and head.startswith("dutyfree-") else None
