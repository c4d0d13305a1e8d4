"""`Flights`: many who want the same thing at once share one making of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from dutyfree.core.errors import Misuse
from dutyfree.core.pending import finish

T = TypeVar("T")


class _Flight(Generic[T]):
    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


class Flights(Generic[T]):
    """Shared tasks by key. Work goes on while anybody waits for it; the last to be cancelled cancels it."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}
        self._closed = False

    async def join(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work under way for `key`, which is started if there is none. Failures reach all alike."""
        if self._closed:
            raise Misuse("the pool is closed")
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.ensure_future(start()))
            flight.task.add_done_callback(lambda _: self._forget(key, flight))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.task.cancelled() and self._closed:
                raise Misuse("the pool was closed meanwhile") from None
            raise
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._forget(key, flight)  # who asks from now on starts anew, and does not share a cancelled one
                await _cancel(flight.task)

    async def close(self) -> None:
        """Take all work back."""
        self._closed = True
        for flight in list(self._flights.values()):
            await _cancel(flight.task)

    def _forget(self, key: str, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if flight.task.done() and not flight.task.cancelled():
            flight.task.exception()  # everybody who waited may be gone


async def _cancel(task: asyncio.Task[T]) -> None:
    task.cancel()
    await finish(_settled(task))


async def _settled(task: asyncio.Task[T]) -> None:
    await asyncio.wait([task])
