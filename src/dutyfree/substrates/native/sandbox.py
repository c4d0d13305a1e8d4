"""`NativeSandbox`: an agent's sandbox that can save its files, be forked and be reset.

It keeps its id and spec over a reset while everything of the kernel behind it is replaced. What may not overlap does
not: one change of state at a time, and `destroy` waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from dutyfree.core.contract import Sandbox, Snapshot
from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost
from dutyfree.core.pending import Pending, finish
from dutyfree.core.timeline import now_ns
from dutyfree.guest.link import Link
from dutyfree.guest.sandbox import AgentSandbox

if TYPE_CHECKING:
    from dutyfree.substrates.native.plan import Plan

MAX_FORKS = 1024
"""Of one call."""


class NativeSandbox(AgentSandbox):
    """A sandbox of a `NativeSubstrate`, which does the work: it holds the spawner, the layers and the plans."""

    def __init__(self, *, tag: int, plan: Plan, keeper: Keeper, **fields: Any) -> None:
        self.tag = tag
        """What the spawner calls it now."""
        self.plan = plan
        """What it is made of, now and after every reset."""
        self.made_ns = now_ns()
        self.changing = asyncio.Lock()
        """Held while the state is saved or replaced, and at the end."""
        self._keeper = keeper
        super().__init__(**fields, release=self._give_up)

    async def snapshot(self, key: str | None = None) -> Snapshot:
        """Save the files as they are now."""
        self._offered("snapshot")
        async with self.changing:
            await self._alive()
            return await self._keeper.save(self, key)

    async def fork(self, n: int) -> Sequence[Pending[Sandbox]]:
        """Sandboxes that start from the files as they are now."""
        self._offered("fork")
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_FORKS:
            raise Misuse(f"must be a whole number between 1 and {MAX_FORKS}, not {n!r}", field="n", sandbox=self.id)
        async with self.changing:
            await self._alive()
            return await self._keeper.fork(self, n)

    async def reset(self) -> None:
        """Return to the files, processes and limits at creation. A cancelled reset is completed first."""
        self._offered("reset")
        try:
            async with self.changing:
                await self._alive()
                with self.timeline.span("reset"):
                    await finish(self._keeper.renew(self))
        except SandboxLost:
            raise
        except DutyfreeError as error:
            await self.destroy()
            message = f"it could not be reset and was destroyed: {error.message}"
            raise DriverError(message, driver="native", stage="reset", sandbox=self.id) from error

    async def leave(self, why: str) -> None:
        """End what was begun so far; for the substrate."""
        await self._leave(why)

    def adopt(self, link: Link, tag: int) -> None:
        """Go on as the sandbox that the spawner calls `tag`; for the substrate."""
        self._adopt(link)
        self.tag = tag

    def lost(self, why: str) -> SandboxLost:
        """The error for callers of a sandbox that is gone."""
        return SandboxLost(f"the sandbox is gone: {why}", driver="native", sandbox=self.id)

    def _offered(self, ability: str) -> None:
        if not getattr(self.capabilities, ability):
            raise self._unsupported(ability)

    async def _alive(self) -> None:
        if self.link.lost is not None or self._end is not None:
            raise await self.link.explain()

    async def _give_up(self) -> None:
        async with self.changing:
            await self._keeper.release(self)


class Keeper:
    """What a substrate does for its sandboxes."""

    save: Callable[[NativeSandbox, str | None], Awaitable[Snapshot]]
    fork: Callable[[NativeSandbox, int], Awaitable[Sequence[Pending[Sandbox]]]]
    renew: Callable[[NativeSandbox], Awaitable[None]]
    release: Callable[[NativeSandbox], Awaitable[None]]
