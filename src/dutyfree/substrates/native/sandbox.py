"""`NativeSandbox`: an agent's sandbox that can save its files, be forked and be reset.

It keeps its id and spec over a reset while everything of the kernel behind it is replaced. What may not overlap does
not: one change of state at a time; `destroy` ends a snapshot under way, and waits for a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from dutyfree.core.contract import Sandbox, Snapshot
from dutyfree.core.errors import DriverError, DutyfreeError, SandboxLost
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.guest.argument import forks
from dutyfree.guest.link import Link
from dutyfree.guest.sandbox import AgentSandbox
from dutyfree.substrates.native.plan import Plan


class Keeper(Protocol):
    """Services of the substrate for its sandboxes: it has the spawner, the layers and the plans."""

    async def save(self, box: NativeSandbox, key: str | None, spec: Spec) -> Snapshot:
        """Make a snapshot that remembers `env`, `cwd` and `user` of `spec`."""
        ...

    async def fork(self, box: NativeSandbox, n: int) -> Sequence[Pending[Sandbox]]:
        """Save the state, and promise sandboxes that start from it."""
        ...

    async def renew(self, box: NativeSandbox) -> None:
        """Replace what is behind the sandbox by a fresh one, verified; on failure nothing is behind it."""
        ...

    async def release(self, box: NativeSandbox) -> None:
        """End what is behind the sandbox and return when it is gone."""
        ...


class NativeSandbox(AgentSandbox):
    """A sandbox of a `NativeSubstrate`."""

    def __init__(self, *, tag: int, plan: Plan, keeper: Keeper, **fields: Any) -> None:
        self.tag = tag
        """What the spawner calls it now."""
        self.plan = plan
        """What it is made of, now and after every reset."""
        self.made_ns = now_ns()
        self._keeper = keeper
        self._changing = asyncio.Lock()
        self._renewing = asyncio.Lock()
        super().__init__(release=self._give_up, **fields)

    async def snapshot(self, key: str | None = None, *, spec: Spec | None = None) -> Snapshot:
        """Save the files as they are now."""
        self._need("snapshot")
        async with self._changing:
            await self._check_alive()
            try:
                return await self._keeper.save(self, key, spec or self.spec)
            except DriverError:
                await self._check_alive()  # it was destroyed meanwhile: then that is the reason
                raise

    async def fork(self, n: int) -> Sequence[Pending[Sandbox]]:
        """Sandboxes that start from the files as they are now."""
        self._need("fork")
        n = forks(n)
        async with self._changing:
            await self._check_alive()
            try:
                return await self._keeper.fork(self, n)
            except DriverError:
                await self._check_alive()
                raise

    async def reset(self) -> None:
        """Return to the state at creation. Cancelled: it is completed all the same, and raised then."""
        self._need("reset")
        try:
            async with self._changing, self._renewing:
                await self._check_alive()
                with self.timeline.span("reset"):
                    await finish(self._keeper.renew(self))
        except SandboxLost:
            raise
        except DutyfreeError as error:
            await self.destroy()
            message = f"it could not be reset and was destroyed: {error.message}"
            raise DriverError(message, driver="native", step="reset", sandbox=self.id) from error

    async def leave(self, why: str) -> None:
        """End what was begun so far; for the substrate."""
        await self._leave(why)

    def adopt(self, link: Link, tag: int) -> None:
        """Go on as the sandbox that the spawner calls `tag`; for the substrate."""
        self._adopt(link)
        self.tag = tag

    def _need(self, ability: str) -> None:
        if not getattr(self.capabilities, ability):
            raise self._unsupported(ability)

    async def _check_alive(self) -> None:
        if self.link.lost is not None or self._end is not None:
            raise await self.link.explain()

    async def _give_up(self) -> None:
        async with self._renewing:
            await self._keeper.release(self)
