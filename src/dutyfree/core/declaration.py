"""What a driver offers by itself, whatever machine it is asked on: for tables that must read the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dutyfree.core.contract import Capabilities


@runtime_checkable
class Declares(Protocol):
    """A `Driver` that can tell without looking."""

    def declared(self) -> Sequence[Capabilities]:
        """What it offers where everything it needs is in place: one for each dispatch mode, the default first."""
        ...
