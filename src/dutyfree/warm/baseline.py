"""Baselines for `nearest.choose`: they answer the same question and look at less.

Round robin, random and least-loaded choose the node without looking at states, and then start there as well as that
node can: its own idle sandboxes and layers are used. Exact-match looks at states everywhere, but only for the wanted
one itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dutyfree.warm.cost import Costs
from dutyfree.warm.nearest import Choice, IdleSandbox, LayerSet, Node, Request, choose, takers


class RoundRobin:
    """The nodes in turn, by name."""

    def __init__(self) -> None:
        self._turn = 0

    def __call__(
        self,
        request: Request,
        idle: Iterable[IdleSandbox],
        layers: Iterable[LayerSet],
        nodes: Sequence[Node],
        costs: Costs,
    ) -> Choice:
        """`Policy`."""
        names = sorted(takers(nodes))
        name = names[self._turn % len(names)]
        self._turn += 1
        return _at(name, request, idle, layers, nodes, costs)


class Random:
    """Any node, by a seed of its own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a choice, not a secret

    def __call__(
        self,
        request: Request,
        idle: Iterable[IdleSandbox],
        layers: Iterable[LayerSet],
        nodes: Sequence[Node],
        costs: Costs,
    ) -> Choice:
        """`Policy`."""
        return _at(self._random.choice(sorted(takers(nodes))), request, idle, layers, nodes, costs)


def least_loaded(
    request: Request, idle: Iterable[IdleSandbox], layers: Iterable[LayerSet], nodes: Sequence[Node], costs: Costs
) -> Choice:
    """The node that has the least to do."""
    node = min(takers(nodes).values(), key=lambda node: (node.wait_s, node.load, node.id))
    return _at(node.id, request, idle, layers, nodes, costs)


def exact_match(
    request: Request, idle: Iterable[IdleSandbox], layers: Iterable[LayerSet], nodes: Sequence[Node], costs: Costs
) -> Choice:
    """A sandbox or layers in exactly the wanted state, unless all stages on the least loaded node are done sooner."""
    layers = list(layers)
    images = [replace(one, state=request.want[:1]) for one in layers if one.state[:1] == request.want[:1]]
    missed = least_loaded(request, (), images, nodes, costs)
    boxes = [box for box in idle if box.state == request.want]
    sets = [one for one in layers if one.state == request.want]
    able = takers(nodes)
    homes = ({box.node for box in boxes} | {one.node for one in sets}) & able.keys()
    if not homes:
        return missed
    found = choose(request, boxes, sets, [able[name] for name in sorted(homes)], costs)
    return min(found, missed, key=lambda one: one.completion_s)


def _at(
    name: str,
    request: Request,
    idle: Iterable[IdleSandbox],
    layers: Iterable[LayerSet],
    nodes: Sequence[Node],
    costs: Costs,
) -> Choice:
    """The best start on one node. Layers of others count too: where nodes exchange layers, it can pull."""
    return choose(request, idle, layers, [node for node in nodes if node.id == name], costs)
