"""`Stock`: the sandboxes of a pool that nobody has leased, how they are made and how they go, and who waits for room.

Knows plans and shelves. What a lease is, and when the stock is to be filled, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from dutyfree.core import fault
from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError, Misuse, Saturated
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.warm.build import Builder
from dutyfree.warm.cost import Estimate, LearnedCosts
from dutyfree.warm.metrics import Counters
from dutyfree.warm.room import FairQueue, Room, Waiter
from dutyfree.warm.settings import Settings
from dutyfree.warm.shelf import Idle, Kind, Plan, Shelf

MAX_SHELVES = 4096
"""More kinds than this, and those that hold nothing are forgotten."""

_FIRST_DESTROY_S = 0.004


class Stock:
    """Of one substrate."""

    def __init__(self, substrate: Substrate, builder: Builder, costs: LearnedCosts, settings: Settings) -> None:
        self.substrate = substrate
        self.settings = settings
        self.counters = Counters()
        self.costs = costs
        self.destroy_cost = Estimate.of(_FIRST_DESTROY_S)
        self.shelves: dict[Kind, Shelf] = {}
        self.room = Room(sandboxes=settings.sandboxes, memory_bytes=settings.memory_bytes)
        self.queue: FairQueue[Plan] = FairQueue()
        self.coming = 0
        self.closed = False
        self._builder = builder
        self._gate = asyncio.Semaphore(settings.at_once)
        self._ending: set[asyncio.Task[None]] = set()

    # -- shelves

    def shelf(self, plan: Plan) -> Shelf:
        """Shelf on which sandboxes of that kind wait."""
        found = self.shelves.get(plan.kind)
        if found is None:
            if len(self.shelves) >= MAX_SHELVES:
                self._forget_empty()
            found = self.shelves[plan.kind] = Shelf(plan)
        return found

    def pick(self, shelf: Shelf) -> Idle | None:
        """An idle one that is not known to be dead: a look, not a question, as this is on everybody's way."""
        while shelf.idle:
            one = shelf.idle.pop()
            if one.box.alive:
                return one
            self.counters.unhealthy += 1
            self.discard(one.box, shelf.plan)
        return None

    def ancestors(self, plan: Plan) -> Iterator[tuple[int, Shelf]]:
        """Shelves with idle sandboxes in an earlier state of the same chain and shape, and how deep that is."""
        for depth in range(plan.chain.depth):
            shelf = self.shelves.get((plan.chain.key_at(depth), plan.shape))
            if shelf is not None and shelf.idle:
                yield depth, shelf

    def put(self, shelf: Shelf, one: Idle) -> None:
        """Put a sandbox on its shelf, or give it to a claim that waits for it."""
        fault.at("dutyfree.warm.put", one.box.id)
        shelf.idle.append(one)
        if self.queue:
            self.pump()

    @property
    def idle(self) -> int:
        """Number of idle sandboxes."""
        return sum(len(shelf.idle) for shelf in self.shelves.values())

    # -- making and ending

    async def make(self, plan: Plan, spec: Spec) -> Sandbox:
        """A sandbox as `spec` says, in the state of `plan`, whose stages are built if they are not there.

        Room for it has been taken, and is given back on failure.
        """
        return await self._counted(plan, lambda: self._make(plan, spec))

    async def copy(self, plan: Plan, pending: Pending[Sandbox], *, owner: str) -> Sandbox:
        """A fork, once there is room for it: never one that waits, whatever its state."""
        try:
            await self.wait_for_room(plan, owner=owner, priority=0, wait_s=self.settings.wait_s)
            return await self._counted(plan, lambda: pending)
        except BaseException:
            await finish(pending.abandon())
            raise

    async def _counted(self, plan: Plan, start: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
        self.coming += 1
        try:
            async with self._gate:
                return await start()
        except BaseException:
            self.give(plan)
            raise
        finally:
            self.coming -= 1

    async def _make(self, plan: Plan, spec: Spec) -> Sandbox:
        while True:
            await self._builder.ensure(plan.chain)
            start_ns = now_ns()
            try:
                fault.at("dutyfree.warm.create")
                box = await self.substrate.create(spec)
            except Misuse:
                # A stage may have been removed since we looked; what else is wrong is the caller's.
                if not plan.chain.depth or await self.substrate.holds(plan.chain.image_at(plan.chain.depth)):
                    raise
                continue
            self.costs.seen("create", (now_ns() - start_ns) / 1e9)
            return box

    async def end(self, box: Sandbox, plan: Plan) -> None:
        """Destroy it and give its room to the next."""
        start_ns = now_ns()
        fault.at("dutyfree.warm.end", box.id)
        try:
            await finish(box.destroy())
        finally:
            self.destroy_cost = self.destroy_cost.seen((now_ns() - start_ns) / 1e9)
            self.give(plan)

    def discard(self, box: Sandbox, plan: Plan) -> None:
        """The same without waiting for it; `close` does."""
        task = asyncio.ensure_future(self._end_quietly(box, plan))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_quietly(self, box: Sandbox, plan: Plan) -> None:
        with suppress(DutyfreeError):  # it is given up in any case, and its substrate ends what is left
            await self.end(box, plan)

    def waste(self, shelf: Shelf, index: int = 0) -> None:
        """Give up an idle one: the oldest unless said otherwise."""
        one = shelf.idle.pop(index)
        self.counters.wasted += 1
        self.counters.wasted_s += one.cost_s
        self.discard(one.box, shelf.plan)

    async def close(self) -> None:
        """Destroy what waits, turn away who waits, and see everything end."""
        self.closed = True
        for waiter in list(self.queue):
            self.queue.remove(waiter)
            if not waiter.granted.done():
                waiter.granted.set_exception(Misuse("the pool was closed meanwhile", driver="warm"))
        for shelf in self.shelves.values():
            while shelf.idle:
                self.waste(shelf)
        while self._ending:
            await asyncio.wait(self._ending)

    # -- room

    def give(self, plan: Plan) -> None:
        """Room is free: for whoever's turn it is."""
        self.room.give(plan.weight_bytes)
        if self.queue:
            self.pump()

    async def wait_for_room(self, plan: Plan, *, owner: str, priority: int, wait_s: float) -> Idle | None:
        """One's turn: an idle sandbox, or None when room for a new one has been reserved. `Saturated` if it takes too long."""
        if self.room.never_fits(plan.weight_bytes):
            raise Misuse(
                f"{plan.weight_bytes} bytes are more than the pool's whole memory_bytes", field="limits.memory_bytes",
                driver="warm",
            )  # fmt: skip
        if not self.queue and (self.room.take(plan.weight_bytes) or self._make_room(plan)):
            return None
        if len(self.queue) >= self.settings.queue or wait_s <= 0:
            raise self._saturated("the pool and its queue are full" if wait_s > 0 else "the pool is full")
        waiter = Waiter(plan, owner=owner, priority=priority, weight_bytes=plan.weight_bytes)
        self.queue.push(waiter)
        return await self._wait(waiter, wait_s)

    def pump(self) -> None:
        """Serve those whose turn it is, as far as there is room."""
        while (waiter := self.queue.first()) is not None:
            plan = waiter.want
            shelf = self.shelves.get(plan.kind)
            granted: Idle | None = None
            if shelf is not None and (one := self.pick(shelf)) is not None:
                granted = one
            elif not self.room.take(plan.weight_bytes) and not self._make_room(plan):
                return
            self.queue.remove(waiter)
            waiter.granted.set_result(granted)

    async def _wait(self, waiter: Waiter[Plan], wait_s: float) -> Idle | None:
        start_ns = now_ns()
        self.counters.waits += 1
        try:
            async with asyncio.timeout(wait_s):
                granted = await asyncio.shield(waiter.granted)
        except BaseException as error:
            self.queue.remove(waiter)
            self._take_back(waiter)
            if isinstance(error, TimeoutError):
                raise self._saturated(f"no room within {wait_s:g} s") from error
            raise
        finally:
            self.counters.wait_s += (now_ns() - start_ns) / 1e9
        assert granted is None or isinstance(granted, Idle)  # noqa: S101 - what `pump` grants
        return granted

    def _take_back(self, waiter: Waiter[Plan]) -> None:
        """Take back a grant to a waiter that left at the same moment."""
        if not waiter.granted.done():
            waiter.granted.cancel()
        elif not waiter.granted.cancelled() and waiter.granted.exception() is None:
            granted = waiter.granted.result()
            if isinstance(granted, Idle):
                self.put(self.shelf(waiter.want), granted)
            else:
                self.give(waiter.want)

    def _make_room(self, plan: Plan) -> bool:
        """Exchange an idle sandbox of another kind, the longest unused, for room. Its place is ours at once."""
        full = [shelf for shelf in self.shelves.values() if shelf.idle and shelf.plan.kind != plan.kind]
        enough = [shelf for shelf in full if shelf.plan.weight_bytes >= plan.weight_bytes]
        if not enough:
            return False
        shelf = min(enough, key=lambda shelf: shelf.idle[0].since_ns)
        # The two swap places in the books now; while the old one is being destroyed there may be one more than allowed.
        self.room.taken += 1
        self.room.taken_bytes += plan.weight_bytes
        self.waste(shelf)
        return True

    def _saturated(self, what: str) -> Saturated:
        self.counters.saturated += 1
        # One sandbox's place, on average, is free after the others' queue has been served once.
        ready_s = self.costs.create_s("local") + self.destroy_cost.seconds
        retry_s = max(0.05, min(30.0, (len(self.queue) + 1) * ready_s))
        return Saturated(f"{what}: {self.room.taken} sandboxes", retry_after_s=round(retry_s, 3), driver="warm")

    def _forget_empty(self) -> None:
        for kind, shelf in list(self.shelves.items()):
            if not shelf.idle and not shelf.coming and not shelf.target:
                del self.shelves[kind]
