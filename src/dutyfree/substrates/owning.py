"""`OwningSubstrate`: a substrate that knows its sandboxes by names of its own and ends them when it is closed.

For drivers that have no supervisor of their own beneath them: what they make is named after its maker, so that people
and sweeps can tell whose it is.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dutyfree.core.contract import Sandbox, Snapshot, Substrate
from dutyfree.core.errors import DutyfreeError, Misuse, SandboxLost, Unsupported
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.substrates.api.command import Floor
from dutyfree.substrates.api.execution import Execute
from dutyfree.substrates.api.sandbox import ApiSandbox
from dutyfree.substrates.boot import Birth
from dutyfree.substrates.image.resolve import BUILD_BENCH, Image, resolve
from dutyfree.substrates.image.store import Store
from dutyfree.substrates.offer import check_offered
from dutyfree.substrates.owned import OwnedSandbox

SWEEP_S = 30.0
"""While sandboxes are created, what others left is looked for this often; and whenever somebody connects."""

Origin = TypeVar("Origin")
"""What a sandbox starts from, as the driver knows it: content, and no name that could mean something else later."""


class OwningSubstrate(Substrate, Generic[Origin]):
    """A driver implements `_find` and `_make`, and `_save` if it offers snapshots."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._store = Store.default()
        self._numbers = itertools.count(1)
        self._floor = Floor()
        self._boxes: dict[str, tuple[Sandbox, Origin]] = {}
        self._shared: dict[str, Shared] = {}
        """By image: what forks on their way start from."""
        self._closed = False
        self._swept_s = asyncio.get_running_loop().time()
        self._sweeping: asyncio.Task[None] | None = None

    async def _create(self, spec: Spec) -> Sandbox:
        start_ns = now_ns()
        if self._closed:
            raise Misuse("the substrate is closed", driver=self.name)
        check_offered(spec, self.capabilities, driver=self.name)
        self._sweep_now_and_then()
        name = f"dutyfree-{self.name}-{os.getpid()}-{next(self._numbers)}-{os.urandom(3).hex()}"
        origin = await self._find(spec.image)
        box = OwnedSandbox(await self._make(spec, name, start_ns, origin), self, self._ended)
        self._boxes[name] = box, origin
        return box

    async def image_key(self, image: str) -> str:
        """The key of what the name stands for now in our own store."""
        return (await self._image(image)).key

    @abstractmethod
    async def _find(self, image: str) -> Origin:
        """What an image's name means now."""

    @abstractmethod
    async def _make(self, spec: Spec, name: str, start_ns: int, origin: Origin) -> Sandbox:
        """Start one sandbox of that name; leave nothing behind on failure or cancellation."""

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
        return await self._make(spec, box.id, now, self._origin(box))

    async def save(self, box: Sandbox, key: str | None) -> Snapshot:
        """`Sandbox.snapshot`."""
        return await self._save(box.id, self._origin(box), key)

    def _origin(self, box: Sandbox) -> Origin:
        if box.id not in self._boxes:
            raise SandboxLost("the sandbox is gone: it was destroyed", driver=self.name, sandbox=box.id)
        return self._boxes[box.id][1]

    async def _save(self, name: str, origin: Origin, key: str | None) -> Snapshot:  # noqa: ARG002 - for drivers
        """What a driver that offers snapshots implements."""
        raise Unsupported("snapshot is not offered", driver=self.name, sandbox=name)

    async def fork(self, box: Sandbox, n: int) -> Sequence[Pending[Sandbox]]:
        """`Sandbox.fork`: one snapshot, kept until the last of its sandboxes has ended."""
        snapshot = await self.save(box, None)
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
        self._boxes.pop(box.id, None)
        await self._left(box.spec.image)

    async def _left(self, image: str) -> None:
        """One sandbox less that may start from, or be reset to, what forks share."""
        shared = self._shared.get(image)
        if shared is not None and shared.leave():
            del self._shared[image]
            await shared.snapshot.remove()

    async def close(self) -> None:
        """Destroy what is left."""
        self._closed = True
        async with asyncio.TaskGroup() as group:
            for box, _ in list(self._boxes.values()):
                group.create_task(box.destroy())
            if self._sweeping is not None:
                await self._sweeping
        self._store.close()

    async def _image(self, name: str) -> Image:
        """An image of our own store, as a root of its own."""
        if name == "host":
            raise Unsupported(
                "image 'host' is this machine's own /usr, which a container does not share: use image 'bench', "
                f"made by `{BUILD_BENCH}`",
                driver=self.name,
            )
        try:
            image = await asyncio.to_thread(resolve, name, self._store)
        except DutyfreeError as error:
            error.driver = self.name
            raise
        if image.binds:
            raise Unsupported("an alias of the host image is not offered in containers", driver=self.name)
        return image

    def _reached_by_exec(
        self, birth: Birth, execute: Execute, stream: socket.socket | None, remove: Callable[[], Awaitable[None]]
    ) -> ApiSandbox:
        """A sandbox whose main process lives as long as `stream` (None: until `remove`), and whose actions are exec calls."""
        created_ns = birth.created()

        async def release() -> None:
            if stream is not None:
                stream.close()
            await remove()

        birth.release = release
        birth.defaults = replace(birth.defaults, cwd=birth.defaults.cwd or "/root")
        birth.timeline.add("ready", created_ns, now_ns())
        return ApiSandbox(birth, execute, self._floor)


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
