"""`Pending`: a resource on its way, that may be awaited or entered.

    box = await substrate.create(spec)            # then `await box.destroy()` is yours
    async with substrate.create(spec) as box:     # destroyed at the end of the block

Nothing happens before one of the two, and a `Pending` can be used once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """Awaitable and async context manager around one start and one release."""

    __slots__ = ("_release", "_resource", "_start")

    def __init__(self, start: Coroutine[Any, Any, T], release: Callable[[T], Awaitable[None]]) -> None:
        self._start = start
        self._release = release
        self._resource: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._start.__await__()

    async def __aenter__(self) -> T:
        self._resource = await self._start
        return self._resource

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._resource is not None:
            await finish(self._release(self._resource))

    def close(self) -> None:
        """Give up a `Pending` that was never used (otherwise Python warns about the coroutine)."""
        self._start.close()

    async def abandon(self) -> None:
        """Give up a `Pending` that was never used, with what is kept for it: it is begun, and taken back at once."""
        if inspect.getcoroutinestate(self._start) != inspect.CORO_CREATED:
            return
        task = asyncio.ensure_future(self._start)
        await asyncio.sleep(0)  # a task that is cancelled before its first step never takes it
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await self._release(task.result())


async def finish(work: Awaitable[None]) -> None:
    """Await clean-up to its end even if the caller is cancelled meanwhile; the cancellation is raised after."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled() and task.exception() is None:
        raise cancelled
    task.result()


async def finish_all(works: Iterable[Awaitable[None]]) -> None:
    """Await all of them, whatever becomes of each; then raise what failed first in their order."""
    for end in await asyncio.gather(*works, return_exceptions=True):
        if end is not None:
            raise end


async def completed(work: Awaitable[T]) -> T:
    """Await a step that must not be left half done: if the caller is cancelled, the step still ends before that is raised."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue
        if not task.cancelled():
            task.exception()  # the cancellation is what the caller asked for
        raise
