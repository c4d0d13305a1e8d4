"""Which idle sandbox, set of layers or node is closest to the state that a rollout needs, in seconds.

Pure functions over values: no I/O, no clock, no memory; the same question has the same answer in any order of its
parts. What things cost comes from `cost`; taking the sandbox, pulling and building are the caller's.

A **state** is a chain of stage keys, the image's first. A sandbox can become every state that its own is a prefix of,
and no other: what is in it cannot be taken out. Layers are different: a node that holds (image, repository,
dependencies) can also start a sandbox from its first two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dutyfree.core.errors import Misuse, Saturated
from dutyfree.warm.cost import LOCAL, Costs

State = tuple[str, ...]
"""Stage keys from the image's on. A key names its whole chain (it is a hash of parent and recipe)."""

How = Literal["idle", "layers", "node"]
"""idle: an idle sandbox · layers: created from layers that the node holds · node: from nothing."""

_RANK: Mapping[str, int] = {"idle": 0, "layers": 1, "node": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """State that a rollout needs."""

    want: State

    def __post_init__(self) -> None:
        if not self.want or not all(self.want):
            raise Misuse("must be a chain of stage keys, the image's first", field="want")


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleSandbox:
    """A sandbox that nobody has leased."""

    id: str
    state: State
    node: str = LOCAL


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSet:
    """Layers that a node holds, or will hold. A node may have many of these, and they may overlap."""

    state: State
    node: str = LOCAL
    ready_in_s: float = 0.0
    """Until the last of them is complete: 0 for those that are there, more for a build or pull that is under way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A machine that can run the rollout."""

    id: str = LOCAL
    wait_s: float = 0.0
    """Until it could begin: 0 if it has room, infinite if it takes no more. See `queue_wait_s`."""
    load: float = 0.0
    """How busy it is, in any unit that all nodes share; the tie-breaker, and what `baseline.least_loaded` looks at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Node on which the rollout starts, and the work that is left there."""

    how: How
    node: str
    sandbox: str | None = None
    """The idle one to claim."""
    have: State = ()
    """What is there already: the sandbox's state, or the layers to start from once pulled."""
    pull: State = ()
    """Layers to bring to the node first; part of `have`."""
    build: State = ()
    """Stages to carry out in the sandbox."""
    wait_s: float = 0.0
    """Until the node, or a layer on its way, is there."""
    ready_s: float = 0.0
    """After that, until the sandbox is in the wanted state: the readiness that this rollout pays."""

    @property
    def completion_s(self) -> float:
        """Seconds from now to the wanted state."""
        return self.wait_s + self.ready_s


class Policy(Protocol):
    """Signature that `choose` and the baselines share."""

    def __call__(
        self,
        request: Request,
        idle: Iterable[IdleSandbox],
        layers: Iterable[LayerSet],
        nodes: Sequence[Node],
        costs: Costs,
    ) -> Choice:
        """Choose a start; `Misuse` without nodes, `Saturated` if none takes more."""
        ...


def shared(have: State, want: State) -> int:
    """Count the stages of `want`, from the first, that are in `have` too."""
    depth = 0
    for one, other in zip(have, want, strict=False):
        if one != other:
            break
        depth += 1
    return depth


def distance(have: State, want: State, costs: Costs, node: str = LOCAL) -> float:
    """Seconds of the stages that a sandbox in state `have` still misses; infinite if it has something else in it."""
    if have != want[: len(have)]:
        return math.inf
    return sum(costs.stage_s(key, node) for key in want[len(have) :])


def queue_wait_s(*, slots: int, ends_in_s: Sequence[float], queued: int, run_s: float) -> float:
    """Expected wait of a rollout that joins a node's queue.

    `ends_in_s`: when those that are running are expected to end, in any order. Rollouts of a group start together and end
    together, so what is known of them counts; but one that is overdue may take long yet, so no place in the queue is
    expected sooner than rollouts of `run_s` end on average.
    """
    if len(ends_in_s) < slots:
        return 0.0
    rounds, place = divmod(queued, slots)
    return max(sorted(ends_in_s)[place], (place + 1) * run_s / slots) + rounds * run_s


def choose(
    request: Request, idle: Iterable[IdleSandbox], layers: Iterable[LayerSet], nodes: Sequence[Node], costs: Costs
) -> Choice:
    """The smallest completion time; among equals an idle sandbox, then layers, then the least loaded node, by name.

    Sandboxes and layers on nodes that are not among `nodes` are passed over.
    """
    open_nodes = takers(nodes)
    sets = list(layers)
    every = (*claims(request, idle, open_nodes, costs), *starts(request, sets, open_nodes, costs))
    return min(every, key=lambda one: _order(one, open_nodes[one.node].load))


def _order(one: Choice, load: float) -> tuple[float, int, float, str, str, int, int, float]:
    """Complete: two choices that are equal here are equal."""
    name = one.sandbox or ""
    return one.completion_s, _RANK[one.how], load, one.node, name, len(one.build), len(one.pull), one.wait_s


def takers(nodes: Sequence[Node]) -> dict[str, Node]:
    """The nodes that take rollouts, by name."""
    if not nodes:
        raise Misuse("must hold at least one node", field="nodes")
    found = {node.id: node for node in nodes if not math.isinf(node.wait_s)}
    if not found:
        raise Saturated(f"none of {len(nodes)} nodes takes more rollouts")
    return found


def claims(request: Request, idle: Iterable[IdleSandbox], nodes: Mapping[str, Node], costs: Costs) -> Iterator[Choice]:
    """Every idle sandbox that can become what is wanted."""
    for box in idle:
        if box.node not in nodes or (missing := distance(box.state, request.want, costs, box.node)) == math.inf:
            continue
        yield Choice(
            how="idle",
            node=box.node,
            sandbox=box.id,
            have=box.state,
            build=request.want[len(box.state) :],
            wait_s=nodes[box.node].wait_s,
            ready_s=costs.claim_s(box.node) + missing,
        )


def starts(request: Request, layers: Sequence[LayerSet], nodes: Mapping[str, Node], costs: Costs) -> Iterator[Choice]:
    """Every way to create a sandbox: on each node, from each of its layer sets and from nothing, with and without pulls."""
    held = [(one, shared(one.state, request.want)) for one in layers]
    sources = _sources(held, len(request.want))
    for node in nodes.values():
        yield from _from_layers(request.want, 0, 0.0, node, sources, costs)
    for one, depth in held:
        if depth and one.node in nodes:
            yield from _from_layers(request.want, depth, one.ready_in_s, nodes[one.node], sources, costs)


def _sources(held: Iterable[tuple[LayerSet, int]], depths: int) -> list[float]:
    """When some node has the first `i + 1` layers complete, so that they can be pulled; infinite: never."""
    soonest = [math.inf] * depths
    for one, depth in held:
        for i in range(depth):
            soonest[i] = min(soonest[i], one.ready_in_s)
    return soonest


def _from_layers(
    want: State, depth: int, ready_in_s: float, node: Node, sources: Sequence[float], costs: Costs
) -> Iterator[Choice]:
    """Start from the first `depth` layers, or pull up to each depth that some node can give."""
    pulled_s, wait_s = 0.0, max(node.wait_s, ready_in_s)
    for upto in range(depth, len(want) + 1):
        if upto > depth:
            pulled_s += costs.pull_s(want[upto - 1], node.id)
            wait_s = max(wait_s, sources[upto - 1])
            if math.isinf(pulled_s) or math.isinf(wait_s):
                return
        missing = sum(costs.stage_s(key, node.id) for key in want[upto:])
        yield Choice(
            how="layers" if depth else "node",
            node=node.id,
            have=want[:upto],
            pull=want[depth:upto],
            build=want[upto:],
            wait_s=wait_s,
            ready_s=pulled_s + costs.create_s(node.id) + missing,
        )
