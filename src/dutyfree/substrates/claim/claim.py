"""One SandboxClaim: made, bound to a sandbox of somebody's pool, kept alive, removed with all that came of it.

The controller deletes a claim by itself when its `shutdownTime` has passed, which its owner puts off while it lives: so
one whose owner is dead goes even if nobody ever connects again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dutyfree.core.errors import DriverError
from dutyfree.driver.program import poll
from dutyfree.substrates.claim.group import CLAIMS, DRIVER, SANDBOXES
from dutyfree.substrates.kubernetes.client import Client
from dutyfree.substrates.kubernetes.manifest import CLAIM_S, owned_metadata
from dutyfree.substrates.kubernetes.owner import Owner
from dutyfree.substrates.kubernetes.pod import START_S, Pod, post
from dutyfree.substrates.kubernetes.state import condition

TTL_S = 600.0
"""A claim outlives its owner by this at most."""

RENEW_S = 150.0
GONE_S = 120.0
"""For the cluster to remove a claim, its sandbox and its pod."""

_POD_NAME = "agents.x-k8s.io/pod-name"
_ABSENT = 404


@dataclass(eq=False, slots=True)
class Claim:
    """By the name we gave it, so that it can be removed even if its creation was never answered."""

    client: Client
    name: str
    container: str
    """Of its pod: the one that is the sandbox."""
    end_s: float = math.inf
    """By the server's clock: when it shall be gone in any case."""
    pod: Pod | None = None
    """What it was bound to."""
    _last: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Of the resource."""
        return self.client.place(CLAIMS[0], self.name, CLAIMS[1])

    async def create(self, pool: str, owner: Owner) -> None:
        """Ask a pool for a sandbox."""
        lifecycle = {"shutdownTime": self._until(), "shutdownPolicy": "Delete"}
        manifest = {
            "apiVersion": CLAIMS[1].removeprefix("apis/"),
            "kind": "SandboxClaim",
            "metadata": owned_metadata(self.name, owner.mark, owner.reference),
            "spec": {"warmPoolRef": {"name": pool}, "lifecycle": lifecycle},
        }
        await post(self.client, self.client.place(CLAIMS[0], group=CLAIMS[1]), manifest)

    async def bound(self) -> Pod:
        """Wait for the controller to find or make a sandbox; its pod, which may still be on its way."""
        try:
            async with asyncio.timeout(START_S):
                sandbox = await self._sandbox()
        except TimeoutError as error:
            raise self._late() from error
        self.pod = Pod(self.client, await self._pod_of(sandbox), self.container)
        return self.pod

    async def extend(self) -> None:
        """Put its end off."""
        await self.client.call("PATCH", self.path, {"spec": {"lifecycle": {"shutdownTime": self._until()}}})

    async def remove(self) -> None:
        """Remove it and wait until its pod is gone; fine if it is gone already."""
        await remove(self.client, self.path, self._cut_short)

    async def why(self) -> str | None:
        """Reason of the pod's end, as far as the cluster knows it."""
        return await self.pod.why() if self.pod is not None else None

    async def _sandbox(self) -> str:
        path = self.client.place(CLAIMS[0], group=CLAIMS[1])
        async with aclosing(self.client.follow(path, self.name)) as events:
            async for event in events:
                if event["type"] == "DELETED":
                    break
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._last = event["object"]
                    found = self._last.get("status", {}).get("sandbox", {}).get("name")
                    if found:
                        return str(found)
        raise DriverError("its claim was deleted before it was bound", driver=DRIVER, step="ready", sandbox=self.name)

    async def _pod_of(self, sandbox: str) -> str:
        reply = await self.client.call("GET", self.client.place(SANDBOXES[0], sandbox, SANDBOXES[1]))
        if not reply.ok:
            raise DriverError(
                f"cannot read sandbox {sandbox!r}: {reply.message}", driver=DRIVER, step="ready", sandbox=self.name
            )
        return str((reply.body["metadata"].get("annotations") or {}).get(_POD_NAME) or sandbox)

    async def _cut_short(self) -> None:
        """Delete without grace if it is already ending: nothing of ours runs in it any more."""
        if self.pod is not None:
            found = await self.client.call("GET", self.client.place("pods", self.pod.name))
            if found.ok and "deletionTimestamp" in found.body["metadata"]:
                await self.pod.remove()

    def _late(self) -> DriverError:
        said = condition(self._last, "Ready")
        words = f"{said['reason']}: {said.get('message', '')}" if said else "no controller has looked at it"
        return DriverError(
            f"its claim was not bound within {START_S:g} s: {words}", driver=DRIVER, step="ready", sandbox=self.name
        )

    def _until(self) -> str:
        end_s = min(self.client.now_s() + TTL_S, self.end_s)
        return datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def last_end_s(client: Client, lifetime_s: float | None) -> float:
    """Of a claim made now: our own clock ends a lifetime, the controller's comes after it."""
    return math.inf if lifetime_s is None else client.now_s() + lifetime_s + CLAIM_S


async def remove(client: Client, path: str, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    """Remove a resource and wait until it is gone with all that was made for it; fine if it is gone already."""
    reply = await client.call("DELETE", path, {"propagationPolicy": "Foreground"})
    if not reply.ok and reply.status != _ABSENT:
        raise DriverError(f"cannot remove it: {reply.message}", driver=DRIVER, step="destroy")

    async def gone() -> bool | None:
        if (await client.call("GET", path)).status == _ABSENT:
            return True
        if meanwhile is not None:
            await meanwhile()
        return None

    if await poll(gone, deadline_s=GONE_S) is None:
        raise DriverError(f"the cluster has not removed it within {GONE_S:g} s", driver=DRIVER, step="destroy")
