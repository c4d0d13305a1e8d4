"""Ownership of pods by Leases. Each client holds one Lease and renews it; every pod names it as its owner.

When a Lease is gone, the cluster's own collector removes what names it. Whoever is connected deletes the Leases of
the dead: a process of this machine that is not there any more, or one of another machine that has not renewed for
`LEASE_S`. Times are the server's, so that clocks of clients need not agree.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dutyfree.core.errors import DriverError, Unavailable
from dutyfree.driver.owner import OWNER_LABEL, is_local, is_orphan, owner_mark
from dutyfree.substrates.kubernetes.client import DRIVER, Client
from dutyfree.substrates.kubernetes.manifest import LEASE_LABEL

LEASE_S = 60
RENEW_S = 15.0
SWEEP_S = 20.0
"""What a dead owner left is gone after this, while anybody is connected; else when the next one connects."""

Kind = tuple[str, str]
"""Resources, and the group that they are of."""

PODS: Kind = ("pods", "api/v1")
_GROUP = "apis/coordination.k8s.io/v1"
_ABSENT = 404
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class Owner:
    """One process's Lease. Made by `claim`. `kinds` are what is removed with a dead owner's, in that order."""

    def __init__(self, client: Client, kinds: Sequence[Kind] = (PODS,)) -> None:
        self._client = client
        self._kinds = kinds
        self.mark = owner_mark()
        self.name = f"dutyfree-{os.getpid()}-{os.urandom(4).hex()}"
        self.uid = ""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def reference(self) -> dict[str, str]:
        """Reference with which a pod names its owner."""
        return {"name": self.name, "uid": self.uid}

    async def claim(self) -> None:
        """Make the Lease, remove what the dead left, and go on doing so."""
        await self._make()
        try:
            await self.sweep()
        except BaseException:
            await self._drop(self.name)
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(every(RENEW_S, self._renew)),
            loop.create_task(every(SWEEP_S, self.sweep)),
        ]

    async def release(self) -> None:
        """Give the Lease up, and with it whatever is left."""
        await stop(self._tasks)
        await self._drop(self.name)

    async def sweep(self) -> list[str]:
        """Remove what dead owners have, and their Leases; the names of those."""
        found = await self._client.call("GET", self._leases(), query=[("labelSelector", LEASE_LABEL)])
        if not found.ok:
            raise DriverError(f"cannot list leases: {found.message}", driver=DRIVER, step="connect")
        dead = [lease["metadata"]["name"] for lease in found.body["items"] if self._is_dead(lease)]
        for name in dead:
            await self._drop(name)
        return dead

    async def _make(self) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "labels": {OWNER_LABEL: self.mark, LEASE_LABEL: self.name}},
            "spec": self._term(),
        }
        made = await self._client.call("POST", self._leases(), lease)
        if not made.ok:
            raise Unavailable(
                f"the cluster lets us make no lease in namespace {self._client.namespace!r}: {made.message}",
                enable="see docs/guide/kubernetes.md for the rights it takes",
                driver=DRIVER,
            )
        self.uid = made.body["metadata"]["uid"]

    async def _renew(self) -> None:
        path = self._leases(self.name)
        found = await self._client.call("GET", path)
        if found.status == _ABSENT:
            await self._make()  # somebody took us for dead
        elif found.ok:
            await self._client.call("PUT", path, {**found.body, "spec": self._term()})

    async def _drop(self, name: str) -> None:
        """The Lease last: one that is still there shows that there is something to do."""
        selector = [("labelSelector", f"{LEASE_LABEL}={name}")]
        for kind, group in self._kinds:
            path = self._client.place(kind, group=group)
            await self._client.call("DELETE", path, {"gracePeriodSeconds": 0}, selector)
        await self._client.call("DELETE", self._leases(name))

    def _is_dead(self, lease: dict[str, Any]) -> bool:
        if lease["metadata"]["name"] == self.name:
            return False
        mark = lease["metadata"]["labels"].get(OWNER_LABEL, "")
        if is_local(mark):
            return is_orphan(mark)  # whatever its clock says: its event loop may stand still
        renewed = datetime.strptime(lease["spec"]["renewTime"], _TIME).replace(tzinfo=UTC)
        return self._client.now_s() - renewed.timestamp() > float(lease["spec"]["leaseDurationSeconds"])

    def _term(self) -> dict[str, Any]:
        now = datetime.fromtimestamp(self._client.now_s(), UTC).strftime(_TIME)
        return {"holderIdentity": self.mark, "leaseDurationSeconds": LEASE_S, "renewTime": now}

    def _leases(self, name: str = "") -> str:
        return self._client.place("leases", name, _GROUP)


async def every(period_s: float, work: Callable[[], Awaitable[object]]) -> None:
    """Do it again and again, for ever."""
    while True:
        await asyncio.sleep(period_s)
        with suppress(Unavailable, DriverError):  # the next turn tries again
            await work()


async def stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End them, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
