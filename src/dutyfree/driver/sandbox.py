"""`DriverSandbox`: the life of one sandbox, for all drivers: body, state, clocks, snapshot, fork, reset, destroy.

A sandbox has a body, which a reset replaces. One change of state happens at a time: `destroy` cuts off a snapshot
that is under way, and waits for a reset. `AgentSandbox` and `ExecSandbox` say how actions reach the body.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from dutyfree.core.contract import Sandbox, Snapshot
from dutyfree.core.egress import Egress
from dutyfree.core.errors import DriverError, DutyfreeError, SandboxLost
from dutyfree.core.home import check_loop
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import Timeline, now_ns
from dutyfree.driver.backend import Backend, Body, ImageDefaults, Order, State
from dutyfree.driver.exec_command import DispatchFloor
from dutyfree.driver.state import StateKeeper, StateSnapshot
from dutyfree.guest.argument import forks
from dutyfree.guest.egress import proxy_env

Lose = Callable[[str], None]
"""Begins to end the sandbox, for a reason that is told to everybody who asks later."""

OVER = "its lifetime was over"


@dataclass(eq=False, slots=True)
class Owner:
    """State that the sandboxes of one substrate share."""

    backend: Backend
    keeper: StateKeeper | None
    create: Callable[[Spec, State], Awaitable[Sandbox]]
    """Make a sandbox that takes over a promised use of the state."""
    boxes: set[DriverSandbox] = field(default_factory=set)
    floor: DispatchFloor = field(default_factory=DispatchFloor)


class DriverSandbox(Sandbox):
    """A subclass says how actions reach a body: `_join` and `_leave`."""

    def __init__(self, owner: Owner, order: Order, body: Body) -> None:
        self.id = order.id
        self.spec = order.spec
        self.network = order.network
        self.timeline = order.timeline
        self.capabilities = owner.backend.capabilities
        self.body = body
        self.state = order.state
        self._owner = owner
        self._start_ns = order.start_ns
        self._expiry: Expiry | None = None
        self._end: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._bodiless = False

    @property
    def alive(self) -> bool:
        """Nobody has begun to end it."""
        return self._end is None

    @abstractmethod
    async def _join(self, body: Body) -> None:
        """Act through this body from now on; return once it answers."""

    @abstractmethod
    async def _leave(self, why: str) -> None:
        """End what was begun through the body; calls raise `SandboxLost` saying why. Calling it twice is fine."""

    def _defaults(self, body: Body) -> ImageDefaults:
        """Defaults of every action: those of the spec, else of the state, else of the image."""
        spec, image = self.spec, body.image if self.state is None else self.state.image
        env = {**image.env, **spec.env}
        if isinstance(self.network, Egress):
            env = {**image.env, **proxy_env(), **spec.env}
        return ImageDefaults(env=env, cwd=spec.cwd or image.cwd or body.home, user=spec.user or image.user)

    def _start_clocks(self) -> None:
        """Begin to count lifetime and idleness, where nobody else does."""
        lifetime_s = None if self._owner.backend.keeps_time else self.spec.lifetime_s
        if lifetime_s is not None:
            self._expiry = Expiry(lifetime_s, None, self._begin_end)

    # -- snapshot, fork

    async def snapshot(self, key: str | None = None, *, spec: Spec | None = None) -> Snapshot:
        """Save the files as they are now."""
        keeper, _ = self._need("snapshot")
        image = self._remembered(spec or self.spec)
        state = await self._save(lambda on: keeper.save(self.body, on, key, image))
        return StateSnapshot(state.key, keeper)

    async def fork(self, n: int) -> Sequence[Pending[Sandbox]]:
        """Promise sandboxes that start from the files as they are now."""
        keeper, _ = self._need("fork")
        n, image = forks(n), self._remembered(self.spec)
        state = await self._save(lambda on: keeper.save(self.body, on, None, image, forks=n))
        spec = replace(self.spec, image=f"snapshot:{state.key}")
        return [Pending(self._owner.create(spec, state), _destroy) for _ in range(n)]  # type: ignore[arg-type]

    def _need(self, ability: str) -> tuple[StateKeeper, State]:
        if not getattr(self.capabilities, ability) or self._owner.keeper is None or self.state is None:
            raise self._unsupported(ability)
        return self._owner.keeper, self.state

    def _remembered(self, spec: Spec) -> ImageDefaults:
        image = self.body.image if self.state is None else self.state.image
        return ImageDefaults(**spec.over(image))

    async def _save(self, save: Callable[[State], Awaitable[State]]) -> State:
        assert self.state is not None  # noqa: S101 - `_need` has looked
        check_loop(self._home)
        async with self._changing:
            await self._check_alive()
            try:
                return await save(self.state)
            except DriverError:
                await self._check_alive()  # it was destroyed meanwhile: then that is the reason
                raise

    # -- reset

    async def reset(self) -> None:
        """Return to the state at creation. Cancelled: it is completed all the same, and the cancellation raised then."""
        if not self.capabilities.reset:
            raise self._unsupported("reset")
        check_loop(self._home)
        try:
            async with self._changing, self._renewing:
                await self._check_alive()
                with self.timeline.span("reset"):
                    await finish(self._renew())
        except SandboxLost:
            if self._bodiless:
                await self.destroy()
            raise
        except DutyfreeError as error:
            await self.destroy()
            raise DriverError(
                f"it could not be reset and was destroyed: {error.message}",
                driver=error.driver or self._owner.backend.name, step="reset", sandbox=self.id,
            ) from error  # fmt: skip

    async def _renew(self) -> None:
        """Replace the body by a fresh one that starts from the same state. On failure there is no body any more."""
        backend, old = self._owner.backend, self.body
        order = Order(
            self.id, self.spec, self.network, self.state, self._left_s(), Timeline(), now_ns()
        )  # fmt: skip
        await self._leave("it was reset")
        removal = asyncio.ensure_future(old.remove())
        self._bodiless = True
        try:
            if not (backend.overlaps and old.overlaps):
                await removal
            self.body = body = backend.body(order)
            try:
                await body.start()
                await self._join(body)
                await body.verify()
                await removal
                await body.prepare(self)
            except BaseException:
                await self._leave("it was reset")
                await finish(body.remove())
                raise
            self._bodiless = False
        finally:
            await removal

    def _left_s(self) -> float | None:
        if self.spec.lifetime_s is None:
            return None
        left_s = self.spec.lifetime_s - (now_ns() - self._start_ns) / 1e9
        if left_s <= 0:
            raise SandboxLost(f"the sandbox is gone: {OVER}", driver=self._owner.backend.name, sandbox=self.id)
        return left_s

    @abstractmethod
    async def _check_alive(self) -> None:
        """Raise `SandboxLost` if it is gone: the dead are not brought back."""

    # -- the end

    async def destroy(self) -> None:
        """End everything the sandbox owns and wait until it is gone."""
        check_loop(self._home)
        self._begin_end("it was destroyed")
        if self._end is not None:
            await finish(asyncio.shield(self._end))

    def _begin_end(self, why: str = "it was destroyed") -> None:
        if self._end is None:
            self.body.ended = why
            self._end = asyncio.ensure_future(self._finish_end(why))

    async def _finish_end(self, why: str) -> None:
        """Stop the clocks, cut off what runs, free the body, give back the state, forget the sandbox; each in any case."""
        if self._expiry is not None:
            self._expiry.cancel()
        owner = self._owner
        with self.timeline.span("destroy"):
            async with self._renewing:
                try:
                    await self._leave(why)
                finally:
                    try:
                        if not self._bodiless:
                            self._bodiless = True
                            await self.body.remove()
                    finally:
                        owner.boxes.discard(self)
                        if owner.keeper is not None:
                            await owner.keeper.release(self.state)


class Expiry:
    """The host's clocks of one sandbox, its lifetime and its idleness. Armed at once."""

    def __init__(
        self,
        lifetime_s: float | None,
        idle_s: float | None,
        lose: Lose,
        idle_since: Callable[[], float | None] | None = None,
    ) -> None:
        """`idle_since` tells when the sandbox was last used, by the loop's clock; None: it is busy."""
        self._loop = asyncio.get_running_loop()
        self._lose = lose
        self._idle_since = idle_since
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if lifetime_s is not None:
            self._timers["lifetime"] = self._loop.call_later(lifetime_s, lose, OVER)
        if idle_s is not None and idle_since is not None:
            self._watch(idle_s)

    def cancel(self) -> None:
        """Stop the clocks."""
        for timer in self._timers.values():
            timer.cancel()

    def _watch(self, idle_s: float) -> None:
        """Look again when the time could be up, counted from the last use."""
        since = self._idle_since() if self._idle_since else None
        left_s = idle_s if since is None else since + idle_s - self._loop.time()
        if left_s <= 0:
            self._lose(f"nothing was asked of it for {idle_s:g} s")
            return
        self._timers["idle"] = self._loop.call_later(left_s, self._watch, idle_s)


async def _destroy(box: Sandbox) -> None:
    await box.destroy()
