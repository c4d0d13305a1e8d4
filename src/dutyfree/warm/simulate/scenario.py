"""`Scenario`: everything that a simulation depends on, as a value that JSON can hold.

Owns the defaults and the checks. Seconds are what was measured somewhere: pass your own as JSON, or from records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from dutyfree.core.errors import Misuse

T = TypeVar("T")

MOST_ROLLOUTS = 10_000_000
MOST_NODES = 100_000


def _check(name: str, value: object, *, low: float, high: float, whole: bool = False) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or math.isnan(value):
        raise Misuse(f"must be a {'whole ' if whole else ''}number, not {value!r}", field=name)
    if not low <= value <= high:
        raise Misuse(f"must be between {low:g} and {high:g}, not {value!r}", field=name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One level of the chain of states."""

    name: str
    seconds: float
    """Seconds that the recipe takes: the median over the states of this level."""
    spread: float = 0.5
    """How much these differ: standard deviation of log seconds."""
    tasks_per_state: float = 1.0
    """How many tasks share one state of this level, on average; the last level's is 1, a state for each task."""
    megabytes: float = 10.0
    """Size of its layer."""

    def __post_init__(self) -> None:
        for name in ("seconds", "spread", "megabytes"):
            _check(f"stages.{self.name}.{name}", getattr(self, name), low=0, high=1e9)
        _check(f"stages.{self.name}.tasks_per_state", self.tasks_per_state, low=1, high=1e9)


STAGES = (
    Stage(name="image", seconds=20.0, spread=0.5, tasks_per_state=50, megabytes=1000),
    Stage(name="repository", seconds=2.0, spread=0.8, tasks_per_state=20, megabytes=100),
    Stage(name="dependencies", seconds=15.0, spread=0.8, tasks_per_state=5, megabytes=1000),
    Stage(name="task", seconds=0.5, spread=0.5, tasks_per_state=1, megabytes=20),
)
"""Fetch and unpack an image of 1 GB; clone; install; check out a commit and apply the task's files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Nodes, tasks, costs."""

    nodes: int = 64
    slots: int = 8
    """Rollouts that a node runs at once."""
    tasks: int = 500
    groups: int = 10_000
    """Number of groups that start together from one task's state: by default, twenty passes over the tasks."""
    group: int = 8
    skew: float = 1.0
    """Zipf's exponent of the tasks' popularity. 0: all alike."""
    load: float = 0.5
    """Rollouts arrive as fast as this share of all slots can run them (set-up not counted)."""
    in_flight: int | None = None
    """Instead: this many groups are in flight, and the next arrives when one is done."""
    run_s: float = 60.0
    """A rollout, once ready: the median."""
    run_spread: float = 0.5
    noise: float = 0.2
    """How much repetitions of the same stage differ: standard deviation of log seconds."""
    idle: int = 8
    """Idle sandboxes that a node keeps; the least recently used goes first."""
    cache_gb: float = 40.0
    """Layers that a node keeps, likewise."""
    create_s: float = 0.003
    claim_s: float = 0.0005
    reset_s: float = 0.005
    pull_mb_s: float | None = None
    """Layers can be pulled from a node that has them, this fast; None: they cannot."""
    look: int = 32
    """How many holders of one state a choice looks at: all of them if there are not more."""
    stages: tuple[Stage, ...] = STAGES

    def __post_init__(self) -> None:
        _check("nodes", self.nodes, low=1, high=MOST_NODES, whole=True)
        _check("slots", self.slots, low=1, high=4096, whole=True)
        _check("tasks", self.tasks, low=1, high=1_000_000, whole=True)
        _check("groups", self.groups, low=1, high=MOST_ROLLOUTS, whole=True)
        _check("group", self.group, low=1, high=4096, whole=True)
        _check("groups × group", self.rollouts, low=1, high=MOST_ROLLOUTS, whole=True)
        _check("idle", self.idle, low=0, high=100_000, whole=True)
        _check("look", self.look, low=1, high=MOST_NODES, whole=True)
        for name in ("skew", "run_s", "run_spread", "noise", "cache_gb", "create_s", "claim_s", "reset_s"):
            _check(name, getattr(self, name), low=0, high=1e9)
        _check("load", self.load, low=1e-6, high=1e6)
        if self.in_flight is not None:
            _check("in_flight", self.in_flight, low=1, high=MOST_ROLLOUTS, whole=True)
        if self.pull_mb_s is not None:
            _check("pull_mb_s", self.pull_mb_s, low=1e-6, high=1e12)
        if not self.stages:
            raise Misuse("must hold at least one stage", field="stages")

    @property
    def rollouts(self) -> int:
        """All of them."""
        return self.groups * self.group

    def to_json(self) -> dict[str, Any]:
        """Write the scenario as `from_json` reads it."""
        return asdict(self)


def from_json(data: object) -> Scenario:
    """A scenario from what JSON gave: any of the fields, the rest as they are by default. `Misuse` names the field."""
    values = _known("scenario", data, Scenario)
    stages = values.pop("stages", None)
    if stages is not None:
        if not isinstance(stages, list):
            raise Misuse("must be a list", field="stages")
        values["stages"] = tuple(_build(Stage, _known(f"stages[{i}]", one, Stage)) for i, one in enumerate(stages))
    return _build(Scenario, values)


def _known(where: str, data: object, kind: type) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise Misuse(f"must be an object, not {type(data).__name__}", field=where)
    names = {one.name for one in fields(kind)}
    if unknown := sorted(set(data) - names):
        raise Misuse(f"knows {', '.join(sorted(names))}, not {', '.join(map(str, unknown))}", field=where)
    return dict(data)


def _build(kind: type[T], values: dict[str, Any]) -> T:
    try:
        return kind(**values)
    except TypeError as error:
        raise Misuse(str(error), field=kind.__name__.lower()) from error
