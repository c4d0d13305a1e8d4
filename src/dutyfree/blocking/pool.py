"""`Pool` and its `Lease`, mirrored: what `connect("warm:X")` gives, and `open_pool`. See `dutyfree.warm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Never, cast

from dutyfree import warm
from dutyfree.blocking.bridge import Bridge
from dutyfree.blocking.mirror import Sandbox, Substrate, awaited
from dutyfree.core import contract
from dutyfree.core.spec import Spec
from dutyfree.warm.build import Step
from dutyfree.warm.lease import Origin


class Lease(Sandbox):
    """A sandbox of a pool; given back with its block."""

    _sandbox: warm.Lease

    def __init__(self, bridge: Bridge, sandbox: contract.Sandbox) -> None:
        lease = cast("warm.Lease", sandbox)
        super().__init__(bridge, lease)
        self.origin: Origin = lease.origin
        self.owner: str = lease.owner
        self.key: str | None = lease.key
        self.ttl_s: float | None = lease.ttl_s

    def renew(self, ttl_s: float) -> None:
        """The lease now ends after `ttl_s` from here on. `Misuse` if it had no such end."""
        self._bridge.call(_renewed(self._sandbox, ttl_s))


class Pool(Substrate):
    """Hands out sandboxes in the state that a spec's stages describe, mostly at once; closed with its block."""

    _substrate: warm.Pool

    def create(self, spec: Spec | None = None, **unknown: Never) -> Lease:
        """A sandbox as `spec` says: destroy it, or use it as a block."""
        return Lease(self._bridge, self._bridge.call(awaited(self._substrate.create(spec, **unknown))))

    def claim(
        self,
        spec: Spec,
        *,
        owner: str = "",
        ttl_s: float | None = None,
        key: str | None = None,
        priority: int = 0,
        wait_s: float | None = None,
    ) -> Lease:
        """A sandbox with a lease; the options are `dutyfree.warm.Pool.claim`'s."""
        terms = {"owner": owner, "ttl_s": ttl_s, "key": key, "priority": priority, "wait_s": wait_s}
        return Lease(self._bridge, self._bridge.call(awaited(self._substrate.claim(spec, **terms))))  # type: ignore[arg-type]

    def set_targets(self, targets: Sequence[tuple[Spec, int]]) -> None:
        """Keep so many sandboxes ready for each spec, instead of those that were said before."""
        self._bridge.call(self._substrate.set_targets(targets))

    def settled(self) -> None:
        """Wait until every target is met, or cannot be for now."""
        self._bridge.call(self._substrate.settled())

    def build(self, spec: Spec, say: Callable[[Step], None] | None = None) -> None:
        """Build what is missing of a spec's stages; `say` is told of each."""
        self._bridge.call(self._substrate.build(spec, say))

    def remove_stage(self, key: str) -> None:
        """Give up a stage; what has started from it is not disturbed."""
        self._bridge.call(self._substrate.remove_stage(key))

    def leases(self) -> tuple[Lease, ...]:
        """Those that have not ended."""
        return tuple(Lease(self._bridge, lease) for lease in self._bridge.call(_leases(self._substrate)))

    def metrics(self) -> warm.Metrics:
        """Count the pool's work so far, and what the pool holds now."""
        return self._bridge.call(_metrics(self._substrate))


async def _renewed(lease: warm.Lease, ttl_s: float) -> None:
    lease.renew(ttl_s)


async def _leases(pool: warm.Pool) -> tuple[warm.Lease, ...]:
    return pool.leases()


async def _metrics(pool: warm.Pool) -> warm.Metrics:
    return pool.metrics()
