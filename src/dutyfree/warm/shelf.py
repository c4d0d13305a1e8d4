"""`Plan`: what is the same for all sandboxes of one kind · `Shelf`: those of that kind that wait for work."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dutyfree.core.contract import Sandbox
from dutyfree.core.egress import Egress
from dutyfree.core.spec import Limits, Network, Spec, Storage
from dutyfree.warm.chain import Chain
from dutyfree.warm.demand import Demand

Shape = tuple[Limits, Network | Egress, Storage]
"""What a sandbox cannot change after its creation. Environment, directory and user are given with each action."""

Kind = tuple[str, Shape]
"""A state's key and a shape: sandboxes of one kind can stand for each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps that lead to what a spec asks for."""

    spec: Spec
    """The first that asked for it; keeps what its `id`s were taken of alive."""
    chain: Chain
    kind: Kind
    weight_bytes: int
    """What one counts for in the memory budget."""
    made_ns: int

    @property
    def shape(self) -> Shape:
        """Its second half."""
        return self.kind[1]

    def born_as(self, spec: Spec) -> Spec:
        """Spec for the substrate once the stages are there. The pool's own clocks replace `lifetime_s`."""
        return replace(
            spec, image=self.chain.image_at(self.chain.depth), stages=(), env={}, cwd=None, user=None, lifetime_s=None
        )

    def stock_spec(self) -> Spec:
        """The same for one that nobody has asked for yet."""
        return replace(self.born_as(self.spec), idle_s=None)


@dataclass(slots=True)
class Idle:
    """A sandbox that waits."""

    box: Sandbox
    since_ns: int
    cost_s: float
    """What making it ready took."""
    uses: int = 0
    """Leases it has had."""


@dataclass(slots=True)
class Shelf:
    """The stock of one kind."""

    plan: Plan
    demand: Demand = field(default_factory=Demand)
    idle: list[Idle] = field(default_factory=list)
    """The last one in is the first one out: its memory is the warmest."""
    coming: int = 0
    target: int = 0
    """What the owner wants here; 0: whatever the demand is."""
    rest_until_ns: int = 0
    """After a failure nothing is made for the stock before then."""
    failures: int = 0
    """Number of failures in a row."""
    ready_s: float = 0.01
    """What making one ready took lately."""

    def learn(self, took_s: float) -> None:
        """One was made ready."""
        self.ready_s += 0.3 * (took_s - self.ready_s)
        self.failures = 0
