"""`RenewingSubstrate`: an `OwningSubstrate` that knows what each sandbox started from, and so can start it again.

What engines and runtimes share: the reset of a sandbox, forks from one snapshot, and the sweep of what dead owners
left.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dutyfree.core.contract import Sandbox, Snapshot
from dutyfree.core.errors import DutyfreeError, SandboxLost, Unsupported
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.substrates.owned import OwnedSandbox
from dutyfree.substrates.owning import OwningSubstrate

SWEEP_S = 30.0
"""While sandboxes are created, what others left is looked for this often; and whenever somebody connects."""

Origin = TypeVar("Origin")
"""What a sandbox starts from, as the driver knows it: content, and no name that could mean something else later."""


class RenewingSubstrate(OwningSubstrate, Generic[Origin]):
    """A driver implements `_find`, `_start` and `sweep`, and `_save` if it offers snapshots."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._origins: dict[str, Origin] = {}
        self._shared: dict[str, Shared] = {}
        """By image: what forks on their way start from."""
        self._swept_s = asyncio.get_running_loop().time()
        self._sweeping: asyncio.Task[None] | None = None

    @abstractmethod
    async def _find(self, image: str) -> Origin:
        """Find the state that an image's name means now."""

    @abstractmethod
    async def _start(self, spec: Spec, name: str, start_ns: int, origin: Origin) -> Sandbox:
        """Start one sandbox of that name; leave nothing behind on failure or cancellation."""

    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        self._sweep_now_and_then()
        origin = await self._find(spec.image)
        box = OwnedSandbox(await self._start(spec, name, start_ns, origin), self, self._ended)
        self._origins[name] = origin
        return box

    @abstractmethod
    async def sweep(self) -> list[str]:
        """Remove what dead owners left; the names of their sandboxes."""

    def _sweep_now_and_then(self) -> None:
        """Whoever dies after the others have connected is swept by those who go on creating."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._swept_s >= SWEEP_S and (self._sweeping is None or self._sweeping.done()):
            self._swept_s = now_s
            self._sweeping = asyncio.create_task(self._try_sweep())

    async def _try_sweep(self) -> None:
        with suppress(DutyfreeError, OSError):
            await self.sweep()

    async def renew(self, box: Sandbox) -> Sandbox:
        """A fresh one in place of `box`; its lifetime counts from the creation."""
        spec, now = box.spec, now_ns()
        if spec.lifetime_s is not None:
            left_s = spec.lifetime_s - (now - box.timeline.spans[0].start_ns) / 1e9
            if left_s <= 0:
                raise SandboxLost("the sandbox is gone: its lifetime was over", driver=self.name, sandbox=box.id)
            spec = replace(spec, lifetime_s=max(left_s, 0.001))
        return await self._start(spec, box.id, now, self._origin(box))

    async def save(self, box: Sandbox, key: str | None, spec: Spec) -> Snapshot:
        """`Sandbox.snapshot`."""
        return await self._save(box.id, self._origin(box), key, spec)

    def _origin(self, box: Sandbox) -> Origin:
        if box.id not in self._origins:
            raise SandboxLost("the sandbox is gone: it was destroyed", driver=self.name, sandbox=box.id)
        return self._origins[box.id]

    async def _save(self, name: str, origin: Origin, key: str | None, spec: Spec) -> Snapshot:  # noqa: ARG002 - for drivers
        """Save the state. Drivers that offer snapshots implement this."""
        raise Unsupported("snapshot is not offered", driver=self.name, sandbox=name)

    async def fork(self, box: Sandbox, n: int) -> Sequence[Pending[Sandbox]]:
        """`Sandbox.fork`: one snapshot, kept until the last of its sandboxes has ended."""
        snapshot = await self.save(box, None, box.spec)
        self._shared[snapshot.image] = Shared(snapshot, n)
        spec = replace(box.spec, image=snapshot.image)
        return [Pending(self._child(spec), _destroy) for _ in range(n)]

    async def _child(self, spec: Spec) -> Sandbox:
        try:
            return await self._create(spec)
        except BaseException:
            await finish(self._left(spec.image))
            raise

    async def _ended(self, box: Sandbox) -> None:
        self._boxes.discard(box)
        self._origins.pop(box.id, None)
        await self._left(box.spec.image)

    async def _left(self, image: str) -> None:
        """One sandbox less that may start from, or be reset to, what forks share."""
        shared = self._shared.get(image)
        if shared is not None and shared.leave():
            del self._shared[image]
            await shared.snapshot.remove()

    async def close(self) -> None:
        """Destroy what is left, once nothing is swept any more."""
        self._closed = True
        if self._sweeping is not None:
            await self._sweeping
        await super().close()


@dataclass(slots=True)
class Shared:
    """A snapshot that `users` sandboxes start from."""

    snapshot: Snapshot
    users: int

    def leave(self) -> bool:
        """One user less; True: it was the last."""
        self.users -= 1
        return self.users == 0


async def _destroy(box: Sandbox) -> None:
    await box.destroy()
