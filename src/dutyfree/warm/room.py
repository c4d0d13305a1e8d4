"""`Room`: the budget of a pool, and the fair queue of those who wait for it.

Higher priorities first; within one, owners take turns, so that a hundred requests of one do not stand before the single
request of another. Who is granted room has it reserved already: nobody who comes later can take it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Waiter(Generic[T]):
    """One who waits. `granted` holds what it got."""

    __slots__ = ("granted", "owner", "priority", "want", "weight_bytes")

    def __init__(self, want: T, *, owner: str, priority: int, weight_bytes: int) -> None:
        self.want = want
        self.owner = owner
        self.priority = priority
        self.weight_bytes = weight_bytes
        self.granted: asyncio.Future[object] = asyncio.get_running_loop().create_future()


class FairQueue(Generic[T]):
    """Queue ordered by priority, then by owners in turn, then by arrival."""

    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[str, deque[Waiter[T]]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiter[T]]:
        """Yield waiters in the order of their turns, as far as the next of each owner goes."""
        for level in sorted(self._levels, reverse=True):
            for line in list(self._levels[level].values()):
                yield from list(line)

    def push(self, waiter: Waiter[T]) -> None:
        """Add a waiter to the end of its owner's line."""
        owners = self._levels.setdefault(waiter.priority, OrderedDict())
        owners.setdefault(waiter.owner, deque()).append(waiter)
        self._size += 1

    def first(self) -> Waiter[T] | None:
        """The waiter whose turn it is."""
        for level in sorted(self._levels, reverse=True):
            for line in self._levels[level].values():
                return line[0]
        return None

    def remove(self, waiter: Waiter[T]) -> bool:
        """It was served or went away; its owner's next one comes after the other owners'. False: it was not there."""
        owners = self._levels.get(waiter.priority, OrderedDict())
        line = owners.get(waiter.owner)
        if line is None or waiter not in line:
            return False
        served = line[0] is waiter
        line.remove(waiter)
        self._size -= 1
        if not line:
            del owners[waiter.owner]
        elif served:
            owners.move_to_end(waiter.owner)
        if not owners:
            del self._levels[waiter.priority]
        return True


class Room:
    """Bounds of a pool, and how much of them is taken."""

    def __init__(self, *, sandboxes: int, memory_bytes: int | None) -> None:
        self._sandboxes = sandboxes
        self._memory_bytes = memory_bytes
        self.taken = 0
        self.taken_bytes = 0

    def fits(self, weight_bytes: int) -> bool:
        """One more of that weight could be had."""
        if self.taken >= self._sandboxes:
            return False
        return self._memory_bytes is None or self.taken_bytes + weight_bytes <= self._memory_bytes

    def never_fits(self, weight_bytes: int) -> bool:
        """Say whether it would not fit even into an empty pool."""
        return self._memory_bytes is not None and weight_bytes > self._memory_bytes

    def take(self, weight_bytes: int) -> bool:
        """Reserve room for one, if there is any."""
        if not self.fits(weight_bytes):
            return False
        self.taken += 1
        self.taken_bytes += weight_bytes
        return True

    def give(self, weight_bytes: int) -> None:
        """One is gone."""
        self.taken -= 1
        self.taken_bytes -= weight_bytes
