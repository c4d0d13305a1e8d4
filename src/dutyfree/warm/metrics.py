"""`Metrics`: what a pool did so far and holds now, as plain numbers; `Counters`: the same while they grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """A snapshot. Times are sums in seconds; counts grow, except those of `now`."""

    claims: int
    """Sandboxes handed out."""
    hits: int
    """Claims that got an idle sandbox in exactly the state that was asked for."""
    near: int
    """Idle ones in an earlier state, in which the missing stages were run."""
    misses: int
    """Created while the caller waited."""
    distance_s: float
    """Paid for readiness by those who asked: everything between the claim and the state, waiting for room excepted."""
    forks: int
    """Sandboxes handed out as copies of a leased one; not counted in `claims`."""
    waits: int
    """Claims that had to wait for room."""
    wait_s: float
    saturated: int
    """Claims that were turned away."""
    builds: int
    """Stages built."""
    build_failures: int
    refills: int
    """Sandboxes created for the stock."""
    refill_failures: int
    resets: int
    """Sandboxes that went back to the stock by a reset."""
    replaced: int
    """Sandboxes that were destroyed after their lease."""
    unhealthy: int
    """Idle ones found dead before they were handed out."""
    wasted: int
    """Idle ones destroyed without ever having been used since they were made ready."""
    wasted_s: float
    """What making them had taken."""
    expired: int
    """Leases ended by their time."""
    idle: int
    """Now."""
    leased: int
    """Now."""
    coming: int
    """Now on their way."""
    queued: int
    """Now waiting for room."""

    @property
    def hit_rate(self) -> float:
        """Share of all claims; 0 before the first."""
        return self.hits / self.claims if self.claims else 0.0


@dataclass(slots=True)
class Counters:
    """Counters that only grow."""

    claims: int = 0
    hits: int = 0
    near: int = 0
    misses: int = 0
    distance_s: float = 0.0
    forks: int = 0
    waits: int = 0
    wait_s: float = 0.0
    saturated: int = 0
    refills: int = 0
    refill_failures: int = 0
    resets: int = 0
    replaced: int = 0
    unhealthy: int = 0
    wasted: int = 0
    wasted_s: float = 0.0
    expired: int = 0

    def grown(self) -> dict[str, int | float]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in self.__slots__}
