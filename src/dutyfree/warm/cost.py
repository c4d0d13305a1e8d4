"""Cost of bringing a sandbox into a state: seconds, learned from observations, with priors before the first.

Owns the estimates; measures nothing itself (who runs a stage reports its time here) and decides nothing (`nearest`
does).

How an estimate learns. It is a weighted mean of log seconds, since times of the same work differ by factors: the
prior counts as `PRIOR_WEIGHT` observations, and everything seen before loses a tenth of its weight with each new one,
the prior too. So the first observations count most, about the last ten are remembered, and a changed machine is
followed.

- An outlier is moved to `REACH` times the usual spread before it counts: one build that hung moves the estimate by a
  bounded factor. The spread grows with what it clips, so a change that lasts is believed after a few observations.
- A failure is not a time. It counts in the failure rate, and an estimate is what is paid until one attempt succeeds:
  seconds / (1 - rate). Only a failure that took longer than the estimate says something about time: a lower bound.
- A machine where a stage has been seen rarely borrows from all machines: its own estimate starts as theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from dutyfree.core.errors import Misuse

LOCAL = "local"
"""The node of those who have only one."""

PRIOR_WEIGHT = 1.0
KEEP = 0.9
"""Share of its weight that the past keeps at each observation."""
REACH = 3.0
_LEAST_SPREAD = math.log(1.25)
_FIRST_SPREAD = math.log(2.0)
_LEAST_S, _MOST_S = 1e-6, 1e6
_WORST_RATE = 0.95

Kind = Literal["stage", "create", "claim", "pull"]
"""stage: carry out a stage's recipe · create: a sandbox from layers that are there · claim: take an idle sandbox ·
pull: bring a stage's layer from another node."""


class Costs(Protocol):
    """Seconds, as far as anyone knows. Never negative, never NaN."""

    def stage_s(self, key: str, node: str) -> float:
        """Seconds to carry out this stage's recipe in a sandbox of its parent (of the first: to fetch the image)."""
        ...

    def create_s(self, node: str) -> float:
        """Seconds to create a sandbox from layers that are on the node."""
        ...

    def claim_s(self, node: str) -> float:
        """Seconds to take an idle sandbox, health check included."""
        ...

    def pull_s(self, key: str, node: str) -> float:
        """Seconds to bring this stage's layer from another node; infinite where nodes cannot."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """Seconds of each kind that are assumed before anything was observed."""

    stage_s: float = 5.0
    create_s: float = 0.003
    claim_s: float = 0.0005
    pull_s: float = math.inf
    """Infinite: nodes do not exchange layers."""

    def __post_init__(self) -> None:
        for name in ("stage_s", "create_s", "claim_s", "pull_s"):
            value = getattr(self, name)
            if math.isnan(value) or value < 0:
                raise Misuse(f"must be seconds, not {value!r}", field=name)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of one cost. A value: `seen` and `failed` return the next one."""

    mean: float
    """Of log seconds."""
    weight: float = PRIOR_WEIGHT
    spread: float = _FIRST_SPREAD
    """Usual distance of an observation from the mean, in log seconds."""
    rate: float = 0.0
    """Of failures."""

    @staticmethod
    def of(seconds: float) -> Estimate:
        """A prior."""
        return Estimate(math.log(min(max(seconds, _LEAST_S), _MOST_S)))

    @property
    def seconds(self) -> float:
        """Expected seconds until success, failed attempts included."""
        return math.exp(self.mean) / (1 - min(self.rate, _WORST_RATE))

    def seen(self, seconds: float) -> Estimate:
        """After a success that took this long."""
        return replace(self._moved(_log(seconds)), rate=self._rate(0.0))

    def failed(self, seconds: float) -> Estimate:
        """After a failure, noticed after this long."""
        longer = _log(seconds) > self.mean
        return replace(self._moved(_log(seconds)) if longer else self, rate=self._rate(1.0))

    def _moved(self, value: float) -> Estimate:
        reach = REACH * self.spread
        off = min(max(value - self.mean, -reach), reach)
        weight = KEEP * self.weight + 1.0
        spread = self.spread + (abs(off) - self.spread) / (weight + 1.0)
        return Estimate(self.mean + off / weight, weight, max(spread, _LEAST_SPREAD), self.rate)

    def _rate(self, failed: float) -> float:
        return KEEP * self.rate + (1 - KEEP) * failed


@dataclass(slots=True)
class LearnedCosts:
    """`Costs` that learn: tell them what was paid, ask what will be. Not for several threads at once."""

    priors: Priors = field(default_factory=Priors)
    _everywhere: dict[tuple[Kind, str], Estimate] = field(default_factory=dict)
    _there: dict[tuple[Kind, str, str], Estimate] = field(default_factory=dict)

    def seen(self, kind: Kind, seconds: float, *, key: str = "", node: str = LOCAL) -> None:
        """Learn from a success that took this long."""
        if self._impossible(kind, key):
            self._everywhere[kind, key] = Estimate.of(seconds)
        self._there[kind, key, node] = self._estimate(kind, key, node).seen(seconds)
        self._everywhere[kind, key] = self._common(kind, key).seen(seconds)

    def failed(self, kind: Kind, seconds: float, *, key: str = "", node: str = LOCAL) -> None:
        """Learn from a failure that took this long."""
        if self._impossible(kind, key):
            return
        self._there[kind, key, node] = self._estimate(kind, key, node).failed(seconds)
        self._everywhere[kind, key] = self._common(kind, key).failed(seconds)

    def stage_s(self, key: str, node: str) -> float:
        """`Costs.stage_s`."""
        return self._estimate("stage", key, node).seconds

    def create_s(self, node: str) -> float:
        """`Costs.create_s`."""
        return self._estimate("create", "", node).seconds

    def claim_s(self, node: str) -> float:
        """`Costs.claim_s`."""
        return self._estimate("claim", "", node).seconds

    def pull_s(self, key: str, node: str) -> float:
        """`Costs.pull_s`; infinite if the prior is, until a pull was seen."""
        return math.inf if self._impossible("pull", key) else self._estimate("pull", key, node).seconds

    def _impossible(self, kind: Kind, key: str) -> bool:
        """Believed to be so, and nothing was seen that would change it."""
        return math.isinf(getattr(self.priors, f"{kind}_s")) and (kind, key) not in self._everywhere

    def _estimate(self, kind: Kind, key: str, node: str) -> Estimate:
        there = self._there.get((kind, key, node))
        if there is not None:
            return there
        # What others saw is a prior here: it counts as one observation, however many they made.
        return replace(self._common(kind, key), weight=PRIOR_WEIGHT)

    def _common(self, kind: Kind, key: str) -> Estimate:
        known = self._everywhere.get((kind, key))
        return known if known is not None else Estimate.of(getattr(self.priors, f"{kind}_s"))


def _log(seconds: float) -> float:
    if math.isnan(seconds) or seconds < 0:
        raise Misuse(f"must be seconds, not {seconds!r}", field="seconds")
    return math.log(min(max(seconds, _LEAST_S), _MOST_S))
