"""Two indexes that keep a choice from looking at every node: who holds a state, and who has the least to do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice


class Holders:
    """A set of nodes that is added to, removed from, and walked from a moving place, each in constant time."""

    __slots__ = ("_at", "_nodes", "_turn")

    def __init__(self) -> None:
        self._nodes: list[int] = []
        self._at: dict[int, int] = {}
        self._turn = 0

    def add(self, node: int) -> None:
        """Fine if it is there."""
        if node not in self._at:
            self._at[node] = len(self._nodes)
            self._nodes.append(node)

    def remove(self, node: int) -> None:
        """Remove a node, which must be there."""
        at, last = self._at.pop(node), self._nodes.pop()
        if last != node:
            self._nodes[at] = last
            self._at[last] = at

    def look(self, most: int) -> Iterator[int]:
        """Up to `most` of them. Walks begin in turn at different places, so no node is favoured."""
        nodes = self._nodes
        if len(nodes) <= most:
            return iter(nodes)
        self._turn = (self._turn + 1) % len(nodes)
        if self._turn + most <= len(nodes):
            return islice(nodes, self._turn, self._turn + most)
        return iter(nodes[self._turn :] + nodes[: self._turn + most - len(nodes)])


class Loads:
    """Load of each node, and the node with the least. Loads change by one."""

    __slots__ = ("_buckets", "_least", "load")

    def __init__(self, nodes: int) -> None:
        self.load = [0] * nodes
        self._buckets = [Holders()]
        for node in range(nodes):
            self._buckets[0].add(node)
        self._least = 0

    def more(self, node: int) -> None:
        """One more to do."""
        now = self.load[node]
        self._move(node, now, now + 1)
        if now == self._least and not self._buckets[now]._at:  # noqa: SLF001 - the same module
            self._least = now + 1

    def less(self, node: int) -> None:
        """One less."""
        now = self.load[node]
        self._move(node, now, now - 1)
        self._least = min(self._least, now - 1)

    def least(self) -> int:
        """A node with the least to do."""
        return next(self._buckets[self._least].look(1))

    def _move(self, node: int, old: int, new: int) -> None:
        self._buckets[old].remove(node)
        if new == len(self._buckets):
            self._buckets.append(Holders())
        self._buckets[new].add(node)
        self.load[node] = new
