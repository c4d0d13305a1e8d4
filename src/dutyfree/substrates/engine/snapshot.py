"""Snapshots as images that the engine commits from a container: named by their key, found again by labels.

    <repository>/snapshot:<key>     `dutyfree.snapshot` = what the image says of itself, for those who start from it
                                    `dutyfree.temporary` = the owner's mark, on one that goes with its substrate

What a dead owner left is removed by the next to connect. An image that is given up while containers use it loses its
name only; the layers go when they are looked for the next time and nobody uses them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import defaultdict
from dataclasses import asdict, dataclass

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import DriverError, Misuse, SandboxLost
from dutyfree.core.pending import completed
from dutyfree.driver.owner import is_orphan, owner_mark
from dutyfree.substrates.boot import Defaults
from dutyfree.substrates.engine.http import Http
from dutyfree.substrates.engine.image import Origin

SNAPSHOT_LABEL = "dutyfree.snapshot"
TEMPORARY_LABEL = "dutyfree.temporary"

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ABSENT, _CONFLICT = 404, 409


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One saved state."""

    key: str
    snapshots: Snapshots

    @property
    def image(self) -> str:
        """What `Spec.image` takes."""
        return f"{SNAPSHOT_PREFIX}{self.key}"

    async def remove(self) -> None:
        """Give it up."""
        await self.snapshots.remove(self.key)


class Snapshots:
    """Those of one engine."""

    def __init__(self, http: Http, driver: str, repository: str, *, libpod: bool, pause: bool) -> None:
        """`libpod`: it speaks podman's own API too. `pause`: processes can be held still while files are saved."""
        self._http = http
        self._driver = driver
        self._repository = f"{repository}/snapshot"
        self._libpod = libpod
        self._pause = pause
        self._temporary: set[str] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def save(self, container: str, defaults: Defaults, key: str | None) -> EngineSnapshot:
        """Commit a container's files, with what those who start from it begin with; what is there under that key already is kept."""
        if key is None:
            key = f"temporary-{os.getpid()}-{os.urandom(6).hex()}"
            self._temporary.add(key)
        async with self._locks[self.reference(key)]:
            if not await self.has(key):
                await self._commit(container, defaults, key)
        return EngineSnapshot(key, self)

    async def has(self, key: str) -> bool:
        """There is one of that key."""
        return (await self._http.call("GET", f"/images/{self.reference(key)}/json")).ok

    async def find(self, key: str) -> Origin:
        """What starts from it. `Misuse` if there is none."""
        reply = await self._http.call("GET", f"/images/{self.reference(key)}/json")
        if not reply.ok:
            raise Misuse(f"there is no snapshot {key!r} here", field="image", driver=self._driver)
        found = reply.json()
        said = bytes.fromhex(found["Config"]["Labels"][SNAPSHOT_LABEL])
        return Origin(image=found["Id"], defaults=Defaults(**json.loads(said)))

    async def remove(self, key: str) -> None:
        """Take its name away, and its layers unless somebody uses them."""
        self._temporary.discard(key)
        await self._remove(self.reference(key))

    async def sweep(self) -> None:
        """Remove what dead owners left, and what was in use when it was given up."""
        reply = await self._http.call("GET", "/images/json", all=0, filters=json.dumps({"label": [SNAPSHOT_LABEL]}))
        for found in reply.json() if reply.ok else []:
            names = [name for name in found.get("RepoTags") or [] if name != "<none>:<none>"]
            if not names:
                await self._http.call("DELETE", f"/images/{found['Id']}")  # one that is in use stays
            elif is_orphan((found.get("Labels") or {}).get(TEMPORARY_LABEL, "")):
                for name in names:
                    await self._remove(name)

    async def close(self) -> None:
        """Remove the temporary ones, and what was in use before."""
        while self._temporary:
            await self._remove(self.reference(self._temporary.pop()))
        await self.sweep()

    def reference(self, key: str) -> str:
        """The engine's name for it. `Misuse` for a key that no tag can be."""
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise Misuse(f"{key!r} is no key: up to 128 letters, digits, and . _ - after the first", field="key")
        return f"{self._repository}:{key}"

    async def _commit(self, container: str, defaults: Defaults, key: str) -> None:
        said = json.dumps({**asdict(defaults), "env": dict(defaults.env)}).encode().hex()
        mark = owner_mark() if key in self._temporary else "no"
        reply = await completed(
            self._http.call(
                "POST", "/commit", {}, container=container, repo=self._repository, tag=key, pause=int(self._pause),
                changes=[f"LABEL {SNAPSHOT_LABEL}={said}", f"LABEL {TEMPORARY_LABEL}={mark}"],
            )
        )  # fmt: skip
        if reply.status == _ABSENT:
            raise SandboxLost(f"its container is gone: {reply.message}", driver=self._driver, sandbox=container)
        if not reply.ok:
            raise DriverError(
                f"cannot commit it: {reply.message}", driver=self._driver, step="snapshot", sandbox=container
            )

    async def _remove(self, reference: str) -> None:
        reply = await self._http.call("DELETE", f"/images/{reference}")
        if reply.status == _CONFLICT and self._libpod:
            # By force podman would remove the containers too.
            repository, _, tag = reference.rpartition(":")
            reply = await self._http.call(
                "POST", f"/v4.0.0/libpod/images/{reference}/untag", repo=repository, tag=tag
            )  # fmt: skip
        elif reply.status == _CONFLICT:
            reply = await self._http.call("DELETE", f"/images/{reference}", force=1)
        if not reply.ok and reply.status != _ABSENT:
            raise DriverError(f"cannot remove {reference}: {reply.message}", driver=self._driver, step="snapshot")
