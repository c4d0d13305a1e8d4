"""Blocking work in a thread, for a loop that must not block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from dutyfree.core.pending import finish

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run it and wait for its end, also when cancelled: a thread cannot be stopped, and what it uses must stay."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await finish(_settled(task))
        raise


async def _settled(task: asyncio.Future[T]) -> None:
    await asyncio.wait([task])
    task.exception()
