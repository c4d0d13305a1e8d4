"""`LiveSnapshot`: a template made of a running sandbox; and `Fork`, which gives one up when its copies have started."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from dutyfree.core.contract import SNAPSHOT_PREFIX, Snapshot
from dutyfree.core.pending import finish
from dutyfree.substrates.microvm.template import Template


class LiveSnapshot:
    """A saved state: files, memory, processes."""

    def __init__(self, *, key: str, template: Template, forget: Callable[[LiveSnapshot], Awaitable[None]]) -> None:
        self._key = key
        self.template = template
        self._forget = forget

    @property
    def key(self) -> str:
        """The name that the snapshot is kept under."""
        return self._key

    @property
    def image(self) -> str:
        """For `Spec`."""
        return f"{SNAPSHOT_PREFIX}{self._key}"

    async def remove(self) -> None:
        """Give it up; clones of it are not disturbed."""
        await self._forget(self)


class Fork:
    """Counts the copies that are still to start."""

    def __init__(self, snapshot: Snapshot, copies: int) -> None:
        self._snapshot = snapshot
        self._left = copies

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around the start of one copy; after the last, nobody needs the snapshot."""
        try:
            yield
        finally:
            self._left -= 1
            if self._left == 0:
                await finish(self._snapshot.remove())
