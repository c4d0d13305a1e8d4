"""`Pool`: the substrate `warm:X`. Hands out sandboxes of X in the state that a spec's stages describe, mostly at once.

The way of a hit is short on purpose: a look into two dictionaries, a flag of the sandbox, one object. Everything else
(building, creating, refilling, taking back) is on other ways. It owns every sandbox that X made for it, idle or
leased.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dutyfree.core import fault
from dutyfree.core.contract import Sandbox, Substrate, try_place
from dutyfree.core.errors import DutyfreeError, Misuse
from dutyfree.core.home import check_loop
from dutyfree.core.log import LOG
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec, check_timeout
from dutyfree.core.timeline import now_ns
from dutyfree.warm.build import Builder, Step
from dutyfree.warm.chain import chain_of
from dutyfree.warm.cost import Estimate, LearnedCosts
from dutyfree.warm.flight import Flights
from dutyfree.warm.lease import Lease, Origin
from dutyfree.warm.ledger import Ledger
from dutyfree.warm.metrics import Metrics
from dutyfree.warm.near import Near, Nearest
from dutyfree.warm.plan import Plans
from dutyfree.warm.refill import Refiller
from dutyfree.warm.settings import Settings
from dutyfree.warm.shelf import Idle, Plan, Shelf
from dutyfree.warm.stock import Stock

_FIRST_RESET_S = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms of a claim besides its spec."""

    owner: str = ""
    ttl_s: float | None = None
    priority: int = 0
    wait_s: float | None = None


_NO_TERMS = Terms()


class Pool(Substrate):
    """Made by `open_pool`; owns the substrate beneath and closes it."""

    def __init__(self, substrate: Substrate, settings: Settings, ledger: Ledger | None = None) -> None:
        self.name = f"warm:{substrate.name}"
        self.version = substrate.version
        self.capabilities = replace(substrate.capabilities, stages=substrate.capabilities.snapshot)
        self.substrate = substrate
        self.costs = LearnedCosts()
        self._ledger = ledger or Ledger(substrate.name)
        self._builder = Builder(substrate, self._ledger, self.costs)
        self._stock = Stock(substrate, self._builder, self.costs, settings)
        self._nearest = Nearest(self._stock, self._builder, self.costs, self._ledger)
        self._refiller = Refiller(self._stock, self._renew_targets)
        self._reset_cost = Estimate.of(_FIRST_RESET_S)
        self._plans = Plans(substrate, self.capabilities, driver=self.name, settings=settings)
        self._targets: list[tuple[Spec, int]] = []
        self._leases: set[Lease] = set()
        self._by_key: dict[str, Lease] = {}
        self._claiming: Flights[Lease] = Flights()
        self._asking: dict[str, int] = {}
        self._forked: Counter[str] = Counter()
        """Images that only the forks on them need: nobody else will ask for one."""
        self._settings = settings

    # -- handing out

    async def _create_placed(self, spec: Spec) -> Sandbox:
        return await self._create(spec)  # a claim has tried it

    async def _create(self, spec: Spec) -> Sandbox:
        return await self._claim(spec, _NO_TERMS)

    def claim(
        self,
        spec: Spec,
        *,
        owner: str = "",
        ttl_s: float | None = None,
        key: str | None = None,
        priority: int = 0,
        wait_s: float | None = None,
    ) -> Pending[Lease]:
        """A sandbox with a lease: await it, or enter it.

        `owner`: owners take turns when there is no room. `ttl_s`: the lease ends by itself unless it is renewed. `key`: asking
        again with the same key gives the same lease while it lasts, so that a caller whose answer was lost may repeat itself.
        `priority`: the higher, the sooner. `wait_s`: for room, then `Saturated`; None: the pool's own.
        """
        check_timeout("ttl_s", ttl_s)
        terms = Terms(owner=owner, ttl_s=ttl_s, priority=priority, wait_s=wait_s)
        return Pending(self._claim(spec, terms) if key is None else self._claim_once(key, spec, terms), _destroy)

    async def _claim(self, spec: Spec, terms: Terms) -> Lease:
        check_loop(self._home)
        try:
            lease = await self._find(spec, terms)
            if spec.cwd is not None or spec.user is not None:
                await try_place(lease)
            return lease
        except DutyfreeError as error:
            error.driver = self.name  # what the caller connected to; the message says what is beneath
            raise

    async def _find(self, spec: Spec, terms: Terms) -> Lease:
        start_ns = now_ns()
        stock = self._stock
        if stock.closed:
            raise Misuse("the substrate is closed", driver=self.name)
        plan = self._plans.remembered(spec, start_ns) or await self._plans.find(spec)
        shelf = stock.shelf(plan)
        if spec.image not in self._forked:
            shelf.demand.note(start_ns / 1e9)
        waited_ns = 0
        one: Idle | Near | None = None
        if spec.idle_s is None and not stock.queue:
            one = stock.pick(shelf) or self._nearest.pick(plan)
        if one is None:
            wait_ns = now_ns()
            patience_s = self._settings.wait_s if terms.wait_s is None else terms.wait_s
            one = await stock.wait_for_room(plan, owner=terms.owner, priority=terms.priority, wait_s=patience_s)
            waited_ns = now_ns() - wait_ns
        lease = await self._lease(spec, plan, shelf, one, terms.owner)
        end_ns = now_ns()
        lease.timeline.add("create", start_ns, end_ns)
        lease.timeline.add("ready", end_ns, end_ns)
        stock.counters.claims += 1
        stock.counters.distance_s += (end_ns - start_ns - waited_ns) / 1e9
        self._start_clocks(lease, terms.ttl_s)
        self._refiller.kick()
        return lease

    async def _lease(self, spec: Spec, plan: Plan, shelf: Shelf, one: Idle | Near | None, owner: str) -> Lease:
        counters = self._stock.counters
        if isinstance(one, Idle):
            counters.hits += 1
            return self._hand(one.box, spec, plan, "idle", owner, uses=one.uses)
        if one is not None:
            box = await self._nearest.complete(one, plan)
            counters.near += 1
            return self._hand(box, spec, plan, "near", owner, depth=one.depth)
        start_ns = now_ns()
        box = await self._stock.make(plan, plan.born_as(spec))
        if self._stock.closed:
            await finish(self._stock.end(box, plan))
            raise Misuse("the substrate was closed meanwhile", driver=self.name)
        shelf.learn((now_ns() - start_ns) / 1e9)
        counters.misses += 1
        return self._hand(box, spec, plan, "created", owner)

    def _hand(
        self,
        box: Sandbox,
        spec: Spec,
        plan: Plan,
        origin: Origin,
        owner: str,
        *,
        uses: int = 0,
        depth: int | None = None,
    ) -> Lease:
        fault.at("dutyfree.warm.hand", box.id)
        redo = None if depth is None else partial(self._nearest.run_missing, plan, depth)
        lease = Lease(
            box, id=f"{box.id}.{uses}" if uses else box.id, spec=spec, capabilities=self.capabilities, origin=origin,
            owner=owner, take_back=partial(self._take_back, plan), redo=redo, adopt=partial(self._fork, plan),
        )  # fmt: skip
        lease.uses = uses + 1
        self._leases.add(lease)
        LOG.debug("%s: leased, %s", lease.id, origin)
        return lease

    async def _fork(self, plan: Plan, parent: Lease, pending: Pending[Sandbox]) -> Lease:
        """A lease on a copy of what `parent` holds, on the same terms. It takes a place of the pool, and is never reused."""
        start_ns, beneath = now_ns(), parent.inner.spec.image
        plan = replace(plan, kind=(f"fork of {parent.id}", plan.shape))
        try:
            box = await self._stock.copy(plan, pending, owner=parent.owner)
        except DutyfreeError as error:
            error.driver = self.name
            raise
        if self._stock.closed:
            await finish(self._stock.end(box, plan))
            raise Misuse("the substrate was closed meanwhile", driver=self.name)
        spec = parent.spec
        if box.spec.image != beneath:
            spec = replace(spec, image=box.spec.image, stages=())
            self._forked[spec.image] += 1
        lease = self._hand(box, spec, plan, "forked", parent.owner)
        lease.timeline.add("create", start_ns, now_ns())
        lease.timeline.add("ready", now_ns(), now_ns())
        self._stock.counters.forks += 1
        self._start_clocks(lease, parent.ttl_s)
        return lease

    def _start_clocks(self, lease: Lease, ttl_s: float | None) -> None:
        lease.ttl_s = ttl_s
        if lease.spec.lifetime_s is not None:
            lease.expire("lifetime", lease.spec.lifetime_s, "its lifetime was over", self._note_expired)
        if ttl_s is not None:
            lease.expire("ttl", ttl_s, f"its lease of {ttl_s:g} s was over", self._note_expired)

    async def _claim_once(self, key: str, spec: Spec, terms: Terms) -> Lease:
        known = self._by_key.get(key)
        if known is not None and known.alive:
            if known.owner != terms.owner:
                raise Misuse(f"{key!r} is the key of another owner's lease", field="key", driver=self.name)
            return known
        self._asking[key] = self._asking.get(key, 0) + 1
        try:
            lease = await self._claiming.join(key, partial(self._keyed, key, spec, terms))
        finally:
            self._asking[key] -= 1
            if not self._asking[key]:
                del self._asking[key]
                made = self._by_key.get(key)
                if made is not None and not made.handed and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    await finish(made.destroy())
        lease.handed = True
        return lease

    async def _keyed(self, key: str, spec: Spec, terms: Terms) -> Lease:
        lease = await self._claim(spec, terms)
        lease.key = key
        self._by_key[key] = lease
        return lease

    # -- taking back

    async def _take_back(self, plan: Plan, lease: Lease) -> None:
        self._leases.discard(lease)
        if lease.origin == "forked":
            self._forked -= Counter((lease.spec.image,))
        if lease.key is not None and self._by_key.get(lease.key) is lease:
            del self._by_key[lease.key]
        if self._worth_keeping(plan, lease):
            start_ns = now_ns()
            try:
                fault.at("dutyfree.warm.reset", lease.inner.id)
                await lease.inner.reset()
            except DutyfreeError as error:  # it could not be shown to be clean, so it is replaced
                LOG.info("%s: replaced, as its reset failed: %s", lease.id, error)
            else:
                self._reset_cost = self._reset_cost.seen((now_ns() - start_ns) / 1e9)
                self._stock.counters.resets += 1
                idle = Idle(lease.inner, now_ns(), (now_ns() - start_ns) / 1e9, uses=lease.uses)
                self._stock.put(self._stock.shelf(plan), idle)
                return
        self._stock.counters.replaced += 1
        await self._stock.end(lease.inner, plan)
        self._refiller.kick()

    def _worth_keeping(self, plan: Plan, lease: Lease) -> bool:
        """Say whether a reset is possible and cheaper than a new sandbox, and whether there is a place for it."""
        stock = self._stock
        if stock.closed or stock.queue or not (self.capabilities.reset and lease.reusable and lease.inner.alive):
            return False
        if lease.spec.idle_s is not None or not self._refiller.lacks(stock.shelf(plan)):
            return False
        return self._reset_cost.seconds <= self.costs.create_s("local") + stock.destroy_cost.seconds

    def _note_expired(self) -> None:
        self._stock.counters.expired += 1

    # -- targets, stages, numbers

    async def set_targets(self, targets: Sequence[tuple[Spec, int]]) -> None:
        """Keep so many sandboxes ready for each spec, instead of those that were said before."""
        wanted = []
        for spec, count in targets:
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise Misuse(f"must be a count, not {count!r}", field="targets", driver=self.name)
            await self._plans.find(spec)
            wanted.append((spec, count))
        self._targets = wanted
        await self._renew_targets()
        self._refiller.kick()

    async def settled(self) -> None:
        """Wait until every target is met, or cannot be for now."""
        await self._refiller.settled()

    async def build(self, spec: Spec, say: Callable[[Step], None] | None = None) -> None:
        """Build what is missing of a spec's stages; `say` is told of each. `StageFailed` with the log's tail."""
        if spec.stages and not self.capabilities.stages:
            await self._refuse_stages()
        await self._builder.ensure(await chain_of(spec, self.substrate), say)

    async def remove_stage(self, key: str) -> None:
        """Give up a stage; what has started from it is not disturbed."""
        await self._builder.remove(key)

    def leases(self) -> tuple[Lease, ...]:
        """Those that have not ended."""
        return tuple(self._leases)

    def metrics(self) -> Metrics:
        """Count the pool's work so far, and what the pool holds now."""
        stock, counts = self._stock, self._builder.counts
        return Metrics(
            **stock.counters.grown(),  # type: ignore[arg-type]
            builds=counts.builds,
            build_failures=counts.failures,
            idle=stock.idle,
            leased=len(self._leases),
            coming=stock.coming,
            queued=len(stock.queue),
        )

    async def holds(self, image: str) -> bool:
        """As the substrate beneath."""
        return await self.substrate.holds(image)

    async def image_bytes(self, image: str) -> int | None:
        """As the substrate beneath."""
        return await self.substrate.image_bytes(image)

    async def image_key(self, image: str) -> str:
        """As the substrate beneath."""
        return await self.substrate.image_key(image)

    async def remove_snapshot(self, key: str) -> None:
        """As the substrate beneath."""
        await self.substrate.remove_snapshot(key)

    def start(self) -> None:
        """Sweep what killed owners left, and begin to fill the stock."""
        self._ledger.sweep()
        self._refiller.start()

    async def close(self) -> None:
        """Drain: no more claims, no more builds, every sandbox gone, then the substrate."""
        check_loop(self._home)
        self._stock.closed = True
        await self._claiming.close()
        await self._refiller.close()
        await self._builder.close()
        await self._stock.close()
        for lease in list(self._leases):
            await finish(lease.destroy())
        await self._stock.close()
        await self.substrate.close()

    # -- targets that follow their images

    async def _renew_targets(self) -> None:
        """An image may have changed under its name: its target then belongs to another shelf."""
        fresh: dict[int, int] = {}
        for spec, count in self._targets:
            try:
                shelf = self._stock.shelf(await self._plans.find(spec))
            except (DutyfreeError, OSError):
                continue  # the image is gone for now; who asks for it is told so
            fresh[id(shelf)] = fresh.get(id(shelf), 0) + count
        for shelf in self._stock.shelves.values():
            shelf.target = fresh.get(id(shelf), 0)


async def _destroy(box: Sandbox) -> None:
    await box.destroy()
