"""The two values of the catalogue: a `Probe`, and the `Verdict` it comes to.

A verdict is about effects. An attempt that fails, and one that succeeds without reaching anything outside its
sandbox, are both contained.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from dutyfree.core.contract import Substrate

Group = Literal["escape", "file-api", "exhaustion", "contamination", "interference", "network", "clock"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Finding of one probe."""

    contained: bool | None
    """None: it could not be tried here."""
    reason: str
    """What was seen, or what is missing; one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One attempt of the catalogue."""

    id: int
    name: str
    """Short, with dashes; goes into test ids after the number."""
    group: Group
    run: Callable[[Substrate], Awaitable[Verdict]]
    """Make sandboxes, let the attempt happen, look at the host."""
    harmless: bool = False
    """Does no damage even where nothing isolates it, so it may run there too."""

    @property
    def label(self) -> str:
        """Number and name, as in test ids."""
        return f"{self.id:03d}-{self.name}"


def held(reason: str) -> Verdict:
    """The attempt had no effect outside its sandbox."""
    return Verdict(contained=True, reason=reason)


def broke(reason: str) -> Verdict:
    """The attempt reached something it must not reach."""
    return Verdict(contained=False, reason=reason)


def untried(reason: str) -> Verdict:
    """The attempt needs something that is not here."""
    return Verdict(contained=None, reason=reason)
