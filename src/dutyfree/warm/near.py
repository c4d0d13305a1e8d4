"""`Nearest`: an idle sandbox in an earlier state, completed for a claim where that is quicker than a new one.

The choice itself is `nearest.choose`; here it is asked, and what is missing is run.
"""

from __future__ import annotations

from dataclasses import dataclass

from dutyfree.core import fault
from dutyfree.core.contract import Sandbox
from dutyfree.core.errors import StageFailed
from dutyfree.core.pending import finish
from dutyfree.core.timeline import now_ns
from dutyfree.warm.build import Builder
from dutyfree.warm.chain import network_for
from dutyfree.warm.cost import LearnedCosts
from dutyfree.warm.ledger import Ledger
from dutyfree.warm.log import BuildLog
from dutyfree.warm.nearest import IdleSandbox, LayerSet, Node, Request, choose
from dutyfree.warm.prepare import StageError, prepare
from dutyfree.warm.shelf import Plan
from dutyfree.warm.stock import Stock


@dataclass(frozen=True, slots=True)
class Near:
    """An idle sandbox of an earlier state, taken."""

    box: Sandbox
    plan: Plan
    """Of that state."""
    depth: int
    """How many stages of the chain are in it."""


class Nearest:
    """Over one stock."""

    def __init__(self, stock: Stock, builder: Builder, costs: LearnedCosts, ledger: Ledger) -> None:
        self._stock = stock
        self._builder = builder
        self._costs = costs
        self._ledger = ledger

    def pick(self, plan: Plan) -> Near | None:
        """Take one, if running the missing stages in it should take less time than creating a sandbox that has them.

        A stage that was never built is built and kept first, so it is not for this way.
        """
        if not plan.chain.depth:
            return None
        found = {depth: shelf for depth, shelf in self._stock.ancestors(plan) if self._may_complete(plan, depth)}
        if not found:
            return None
        states = plan.chain.states
        idle = [IdleSandbox(id=str(depth), state=states[: depth + 1]) for depth in found]
        choice = choose(Request(want=states), idle, [LayerSet(state=states)], [Node()], self._costs)
        if choice.sandbox is None:
            return None
        depth = int(choice.sandbox)
        one = self._stock.pick(found[depth])
        return None if one is None else Near(one.box, found[depth].plan, depth)

    async def complete(self, near: Near, plan: Plan) -> Sandbox:
        """Run what is missing; on failure or cancellation the sandbox is gone."""
        try:
            fault.at("dutyfree.warm.complete", near.box.id)
            await self.run_missing(plan, near.depth, near.box)
        except BaseException:
            await finish(self._stock.end(near.box, near.plan))
            raise
        return near.box

    async def run_missing(self, plan: Plan, depth: int, box: Sandbox) -> None:
        """The stages after the first `depth`, in a sandbox that has those. `StageFailed` with the log's tail."""
        chain = plan.chain
        log = BuildLog()
        for one in range(depth + 1, chain.depth + 1):
            start_ns = now_ns()
            try:
                await prepare(chain.stages[one - 1], box, log, planned=chain.recipes[one - 1], ledger=self._ledger)
            except StageError as error:
                self._costs.failed("stage", (now_ns() - start_ns) / 1e9, key=chain.key_at(one))
                raise StageFailed(
                    f"stage {chain.label(one)} failed: {error}", key=chain.key_at(one), log_tail=log.tail(),
                    driver=self._stock.substrate.name, step="build", sandbox=box.id,
                ) from error  # fmt: skip
            self._costs.seen("stage", (now_ns() - start_ns) / 1e9, key=chain.key_at(one))

    def _may_complete(self, plan: Plan, depth: int) -> bool:
        """Every missing stage has been built before, under the network that this sandbox has."""
        chain, offered = plan.chain, self._stock.substrate.capabilities
        return all(
            self._builder.knows(chain.key_at(one))
            and network_for(chain.stages[one - 1], offered) == plan.spec.network
            for one in range(depth + 1, chain.depth + 1)
        )  # fmt: skip
