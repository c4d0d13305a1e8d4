"""`Builder`: every stage of a chain, built once and kept, whoever asks for it and however many do.

One builder at a time per key: tasks of this process share one build, other processes wait at the key's lock. A stage is
visible when the substrate holds its snapshot and not before, so a builder that is killed leaves nothing that another
would take for a stage. A recipe that fails is `StageFailed` for all who waited, and is tried again by who asks next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dutyfree.core import fault
from dutyfree.core.contract import Substrate
from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, StageFailed
from dutyfree.core.log import LOG
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.warm.chain import Chain, network_for
from dutyfree.warm.cost import LearnedCosts
from dutyfree.warm.flight import Flights
from dutyfree.warm.ledger import Entry, Ledger, unix_now
from dutyfree.warm.log import BuildLog
from dutyfree.warm.prepare import StageError, prepare


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Stage that `Builder.ensure` found or built."""

    key: str
    name: str
    built: bool
    """True if this call or one it waited for built it; False: it was there."""
    took_s: float


@dataclass(slots=True)
class Counts:
    """Counts of builds, for the pool's metrics."""

    builds: int = 0
    failures: int = 0


class Builder:
    """Of the stages of one substrate, which must offer snapshots."""

    def __init__(self, substrate: Substrate, ledger: Ledger, costs: LearnedCosts) -> None:
        self._substrate = substrate
        self._ledger = ledger
        self._costs = costs
        self._flights: Flights[None] = Flights()
        self._known: set[str] = set()
        self.counts = Counts()

    async def ensure(self, chain: Chain, say: Callable[[Step], None] | None = None) -> None:
        """Build what is missing of a chain, from the deepest stage that is held."""
        held = await self.deepest(chain)
        for depth in range(1, chain.depth + 1):
            start_ns = now_ns()
            if depth > held:
                await self._flights.join(chain.key_at(depth), lambda depth=depth: self._build(chain, depth))  # type: ignore[misc]
            elif chain.key_at(depth) not in self._known:
                self._recall(chain.key_at(depth))
            if say is not None:
                name = getattr(chain.stages[depth - 1], "name", "")
                say(Step(key=chain.key_at(depth), name=name, built=depth > held, took_s=(now_ns() - start_ns) / 1e9))

    def knows(self, key: str) -> bool:
        """The stage has been built or found, so what its recipe takes is known."""
        return key in self._known

    def _recall(self, key: str) -> None:
        """Learn what a stage took from who built it."""
        self._known.add(key)
        entry = self._ledger.entry(key)
        if entry is not None:
            self._costs.seen("stage", entry.run_s, key=key)

    async def deepest(self, chain: Chain) -> int:
        """Count the stages, from the first, that are built already."""
        for depth in range(chain.depth, 0, -1):
            if await self._substrate.holds(chain.image_at(depth)):
                return depth
        return 0

    async def remove(self, key: str) -> None:
        """Give a stage up: it is built again when somebody asks for it."""
        image = f"snapshot:{key}"
        if await self._substrate.holds(image):
            await self._substrate.remove_snapshot(key)
        self._ledger.forget(key)

    async def close(self) -> None:
        """Take the builds under way back."""
        await self._flights.close()

    async def _build(self, chain: Chain, depth: int) -> None:
        try:
            await self._build_alone(chain, depth)
        except OSError as error:  # of the lock, the log or the ledger: this machine's disk, and not the recipe
            what = f"stage {chain.label(depth)} cannot be written down: {error.strerror}"
            raise DriverError(what, driver=self._substrate.name, step="build") from error

    async def _build_alone(self, chain: Chain, depth: int) -> None:
        key = chain.key_at(depth)
        async with self._ledger.building(key):
            if await self._substrate.holds(chain.image_at(depth)):
                return  # another process was first
            start_ns = now_ns()
            with self._ledger.log(key) as log:
                LOG.info("stage %s: building, key %s", chain.label(depth), key)
                log.line(f"stage {chain.label(depth)}, key {key}, on {chain.image_at(depth - 1)}")
                try:
                    run_s = await self._carry_out(chain, depth, log)
                except DutyfreeError as error:
                    self.counts.failures += 1
                    self._costs.failed("stage", (now_ns() - start_ns) / 1e9, key=key)
                    log.line(f"failed: {error.message}")
                    LOG.info("stage %s: failed: %s", chain.label(depth), error)
                    raise
                took_s = (now_ns() - start_ns) / 1e9
                log.line(f"kept after {took_s:.3f} s")
                LOG.info("stage %s: kept after %.1f s", chain.label(depth), took_s)
            self.counts.builds += 1
            self._known.add(key)
            self._ledger.add(
                Entry(
                    key=key,
                    parent=chain.key_at(depth - 1),
                    image=chain.image,
                    name=getattr(chain.stages[depth - 1], "name", ""),
                    kind=str(chain.recipes[depth - 1]["kind"]),
                    made_s=unix_now(),
                    took_s=took_s,
                    run_s=run_s,
                )
            )

    async def _carry_out(self, chain: Chain, depth: int, log: BuildLog) -> float:
        """In a fresh sandbox in the parent's state; kept under the key once it has succeeded. What the recipe took."""
        stage, key = chain.stages[depth - 1], chain.key_at(depth)
        network = network_for(stage, self._substrate.capabilities)
        async with self._substrate.create(Spec(image=chain.image_at(depth - 1), network=network)) as box:
            start_ns = now_ns()
            try:
                fault.at("dutyfree.warm.build", key)
                await prepare(stage, box, log, planned=chain.recipes[depth - 1], ledger=self._ledger)
            except (StageError, SandboxLost, Misuse) as error:
                what = error.message if isinstance(error, DutyfreeError) else str(error)
                raise StageFailed(
                    f"stage {chain.label(depth)} failed: {what}", key=key, log_tail=log.tail(),
                    driver=self._substrate.name, step="build", sandbox=box.id,
                ) from error  # fmt: skip
            run_s = (now_ns() - start_ns) / 1e9
            self._costs.seen("stage", run_s, key=key)
            fault.at("dutyfree.warm.keep", key)
            await box.snapshot(key)
            return run_s
