"""`DriverSubstrate`: hands out the sandboxes of a backend and owns them. Nothing else does.

From the moment a body exists, every failure and every cancellation ends in its removal. `close` ends all sandboxes,
then the temporary states, then the backend. Each step is tried, whatever became of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import Never, Self, cast, final

from dutyfree.core.contract import Sandbox, Substrate, try_place
from dutyfree.core.descriptor import told
from dutyfree.core.errors import DutyfreeError, Misuse, Unsupported
from dutyfree.core.home import check_loop
from dutyfree.core.log import LOG
from dutyfree.core.pending import Pending, finish, finish_all
from dutyfree.core.spec import Spec, check_spec
from dutyfree.core.timeline import Timeline, now_ns
from dutyfree.driver.agent import AgentSandbox
from dutyfree.driver.backend import Backend, Body, Order, State
from dutyfree.driver.exec import ExecSandbox
from dutyfree.driver.offer import check_offered, strictest_network
from dutyfree.driver.sandbox import DriverSandbox, Owner
from dutyfree.driver.state import StateKeeper

SWEEP_S = 30.0
"""While sandboxes are created, what dead owners left is looked for this often; and whenever somebody connects."""


@final
class DriverSubstrate(Substrate):
    """A `Backend` says what differs from one driver to the next."""

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self.version = backend.version
        self.capabilities = backend.capabilities
        self.stocked = backend.stocked
        self.backend = backend
        self._keeper = StateKeeper(backend.states) if backend.states is not None else None
        self._owner = Owner(backend, self._keeper, self._create_from)
        usual = AgentSandbox if backend.capabilities.dispatch == "agent" else ExecSandbox
        self._kind = cast("type[DriverSandbox]", backend.sandbox or usual)
        self._network = strictest_network(backend.capabilities)
        self._number = 0
        self._starting = 0
        self._started = asyncio.Event()
        self._closed = False
        self._swept_s = monotonic()
        self._sweeping: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, backend: Backend) -> Self:
        """Wrap a backend after its first sweep; if that fails, the backend is closed."""
        try:
            if swept := await backend.sweep():
                LOG.info("%s: removed what dead owners left: %s", backend.name, ", ".join(swept))
        except BaseException:
            await finish(backend.close())
            raise
        return cls(backend)

    def create(self, spec: Spec | None = None, **unknown: Never) -> Pending[Sandbox]:
        """A sandbox as `spec` says."""
        check_spec(spec, unknown)
        return Pending(self._create(spec or Spec()), _destroy)

    async def _create(self, spec: Spec) -> Sandbox:
        return await self._create_from(spec, None)

    async def _create_from(self, spec: Spec, state: State | None) -> Sandbox:
        """Create a sandbox; `state` is one that a fork has promised, and the promise is used up in any case."""
        check_loop(self._home)
        start_ns = now_ns()
        self._starting += 1
        try:
            state = await self._admit(spec, state)
            box = await self._start(spec, state, start_ns)
        except DutyfreeError as error:
            located = error.located(driver=self.name, step="create")
            raise located.with_traceback(error.__traceback__) from error.__cause__
        except OSError as error:
            raise told(error, self.name) from error
        finally:
            self._starting -= 1
            if self._closed:
                self._started.set()
        LOG.debug("%s: created from %s", box.id, spec.image)
        if spec.cwd is not None or spec.user is not None:
            await try_place(box)
        return box

    async def _admit(self, spec: Spec, promised: State | None) -> State | None:
        """Check what is asked; count the use of the state that it starts from."""
        try:
            self._check(spec)
        except BaseException:
            await self._release(promised)
            raise
        self._sweep_now_and_then()
        if promised is not None or self._keeper is None:
            return promised
        state = await self._keeper.find(spec.image)
        self._keeper.take(state)
        return state

    def _check(self, spec: Spec) -> None:
        check_loop(self._home)
        if self._closed:
            raise Misuse("the substrate is closed")
        if spec.stages:
            what = "they are kept as snapshots, and it has none"
            if self.capabilities.snapshot:
                what = f"they are built by a pool: connect to 'warm:{self.name}'"
            raise Unsupported(f"stages are not offered: {what}")
        check_offered(spec, spec.network or self._network, self.capabilities, driver=self.name)

    async def _start(self, spec: Spec, state: State | None, start_ns: int) -> Sandbox:
        self._number += 1
        backend = self.backend
        order = Order(
            backend.name_of(self._number), spec, spec.network or self._network, state, spec.lifetime_s, Timeline(),
            start_ns,
        )  # fmt: skip
        body: Body | None = None
        box: DriverSandbox | None = None
        try:
            body = backend.body(order)
            await body.start()
            order.created()
            box = self._kind(self._owner, order, body)
            await box._join(body)
            await body.prepare(box)
            self._check_open()
        except BaseException:
            await finish(self._undo(body, box, state))
            raise
        order.ready()
        self._owner.boxes.add(box)
        box._start_clocks()
        return box

    def _check_open(self) -> None:
        if self._closed:
            raise Misuse("the substrate was closed meanwhile")

    async def _undo(self, body: Body | None, box: DriverSandbox | None, state: State | None) -> None:
        try:
            if box is not None:
                await box._leave("it was not created")
            if body is not None:
                await body.remove()
        finally:
            await self._release(state)

    async def _release(self, state: State | None) -> None:
        if self._keeper is not None and state is not None:
            await finish(self._keeper.release(state))

    async def holds(self, image: str) -> bool:
        """Say whether `create` could start from this image at once."""
        return self._keeper is not None and await self._keeper.holds(image)

    async def image_key(self, image: str) -> str:
        """Name what changes when the image's content does."""
        return await self.backend.image_key(image)

    async def image_bytes(self, image: str) -> int | None:
        """Size of the image's files, unpacked."""
        return await self.backend.image_bytes(image)

    async def remove_snapshot(self, key: str) -> None:
        """Give up the snapshot of that key."""
        if self._keeper is None or not self.capabilities.snapshot:
            await super().remove_snapshot(key)
        else:
            await self._keeper.remove(key)

    async def sweep(self) -> Sequence[str]:
        """Remove what dead owners left."""
        return await self.backend.sweep()

    def _sweep_now_and_then(self) -> None:
        """Sweep again while creating: an owner may die after everybody else has connected."""
        now_s = monotonic()
        if now_s - self._swept_s >= SWEEP_S and (self._sweeping is None or self._sweeping.done()):
            self._swept_s = now_s
            self._sweeping = asyncio.create_task(self._try_sweep())

    async def _try_sweep(self) -> None:
        with suppress(DutyfreeError, OSError):
            await self.backend.sweep()

    async def close(self) -> None:
        """Destroy what is left, the temporary states, then release the backend."""
        if self._closed:
            return
        check_loop(self._home)
        self._closed = True
        async with AsyncExitStack() as stack:  # each step, whatever became of the one before
            stack.push_async_callback(self.backend.close)
            if self._keeper is not None:
                stack.push_async_callback(self._keeper.close)
            stack.push_async_callback(self._end_all)

    async def _end_all(self) -> None:
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping])
        await finish_all([box.destroy() for box in list(self._owner.boxes)])
        while self._starting:
            self._started.clear()
            await self._started.wait()


async def _destroy(box: Sandbox) -> None:
    await box.destroy()
