"""Waiting for what nobody announces: ask again until the answer is yes or the deadline has passed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1


async def poll(
    ask: Callable[[], Awaitable[T | None]], *, deadline_s: float, longest_pause_s: float = LONGEST_PAUSE_S
) -> T | None:
    """The first answer that is not None; None if there was none in time. Pauses double, so a quick answer is seen quickly."""
    clock = asyncio.get_running_loop()
    end = clock.time() + deadline_s
    pause_s = FIRST_PAUSE_S
    while (answer := await ask()) is None:
        if clock.time() >= end:
            return None
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_pause_s)
    return answer


async def settled(work: Awaitable[T]) -> T:
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
