"""`OwnedSandbox`: what a `RenewingSubstrate` hands out.

Its container can be replaced beneath it, which is how it is reset.

A reset destroys what is there and starts afresh, under the same name, from the very content that the sandbox was
created from: its origin. Nothing of the former one can survive that, so there is nothing to search for; what is
verified is that the new one comes from the origin. If that fails the sandbox is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dutyfree.core.contract import Sandbox, Snapshot
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import Timeline
from dutyfree.driver.proxy import SandboxProxy
from dutyfree.guest.argument import forks


class Owner(Protocol):
    """The substrate, as far as its sandboxes need it."""

    async def renew(self, box: Sandbox) -> Sandbox:
        """A fresh one of the same name and origin as `box`, which is gone already."""
        ...

    async def save(self, box: Sandbox, key: str | None, spec: Spec) -> Snapshot:
        """`Sandbox.snapshot`."""
        ...

    async def fork(self, box: Sandbox, n: int) -> Sequence[Pending[Sandbox]]:
        """`Sandbox.fork`."""
        ...


class OwnedSandbox(SandboxProxy):
    """One sandbox of `owner`; `ended` is called once, after its end."""

    def __init__(self, inner: Sandbox, owner: Owner, ended: Callable[[Sandbox], Awaitable[None]]) -> None:
        super().__init__(inner)
        self.timeline = Timeline(spans=list(inner.timeline.spans))
        self._owner = owner
        self._ended = ended
        self._turn = asyncio.Lock()
        """Held by whoever replaces or ends what is beneath."""
        self._over = False

    async def snapshot(self, key: str | None = None, *, spec: Spec | None = None) -> Snapshot:
        """Save the files as they are now."""
        if not self.capabilities.snapshot:
            raise self._unsupported("snapshot")
        return await self._owner.save(self, key, spec or self.spec)

    async def fork(self, n: int) -> Sequence[Pending[Sandbox]]:
        """`n` sandboxes that start from these files."""
        if not self.capabilities.fork:
            raise self._unsupported("fork")
        return await self._owner.fork(self, forks(n))

    async def reset(self) -> None:
        """Start afresh from the same origin."""
        if not self.capabilities.reset:
            raise self._unsupported("reset")
        async with self._turn:
            await self.inner.stat("/")  # raises if it is gone: the dead are not brought back
            with self.timeline.span("reset"):
                await self.inner.destroy()
                self.inner = await self._owner.renew(self)

    async def destroy(self) -> None:
        """End everything the sandbox owns and wait until it is gone."""
        await finish(self._destroy())

    async def _destroy(self) -> None:
        async with self._turn:
            await self.inner.destroy()
            if self._over:
                return
            self._over = True
            self.timeline.spans += [span for span in self.inner.timeline.spans if span.name == "destroy"]
            await self._ended(self)
