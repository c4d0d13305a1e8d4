"""`EngineStates`: what containers start from, as images of the engine; snapshots are images that it commits.

    <repository>/<name>:<key>       an image of our own store, brought into the engine once
    <repository>/snapshot:<key>     `dutyfree.snapshot` = what the image says of itself, for those who start from it
                                    `dutyfree.temporary` = the owner's mark, on one that goes with its substrate

A state's content is the engine's own id of the image, which never changes its meaning. An image that is given up while
containers use it loses its name only; its layers go when it is deleted again and nobody uses them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import defaultdict
from dataclasses import asdict
from typing import Any

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost
from dutyfree.core.pending import completed
from dutyfree.driver.backend import ImageDefaults, State
from dutyfree.driver.owner import is_orphan, owner_mark
from dutyfree.image.export import rootfs_tar
from dutyfree.image.resolve import Image, resolve_root
from dutyfree.image.store import Store
from dutyfree.substrates.container.engine_http import Http

SNAPSHOT_LABEL = "dutyfree.snapshot"
TEMPORARY_LABEL = "dutyfree.temporary"

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_KEY_SIZE = 32
_ABSENT, _CONFLICT = 404, 409


class EngineStates:
    """The images of one engine: a `StateStore`."""

    def __init__(self, http: Http, store: Store, repository: str, *, libpod: bool, pause: bool) -> None:
        """`libpod`: it speaks podman's own API too. `pause`: processes can be held still while files are saved."""
        self._http = http
        self._store = store
        self._repository = repository
        self._libpod = libpod
        self._pause = pause
        self._brought: dict[str, State] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def holds(self, image: str) -> bool:
        """Tell whether the engine has it already."""
        try:
            if image.startswith(SNAPSHOT_PREFIX):
                return await self._has(self.reference(image.removeprefix(SNAPSHOT_PREFIX)))
            return await self._has(self._ours(await self._image(image)) if self._is_ours(image) else image)
        except DutyfreeError:
            return False

    async def find(self, image: str) -> State:
        """Look up a snapshot, else an image of our store, else one of the engine's own."""
        if image.startswith(SNAPSHOT_PREFIX):
            return await self._find_snapshot(image.removeprefix(SNAPSHOT_PREFIX))
        if self._is_ours(image):
            return await self._bring(await self._image(image))
        return await self._look(image)

    async def size(self, image: str) -> int | None:
        """Give the size of an image's files; None if it cannot be told."""
        if self._is_ours(image):
            try:
                found = self._store.manifest((await self._image(image)).key)
            except DutyfreeError:
                return None
            return found.size_bytes if found else None
        reply = await self._http.call("GET", f"/images/{image}/json")
        size = reply.json().get("Size") if reply.ok else None
        return size if isinstance(size, int) else None

    async def save(self, body: Any, on: State, key: str | None, image: ImageDefaults) -> State:  # noqa: ARG002 - the engine knows
        """Commit a container's files. The engine itself keeps what they lie on."""
        mark = owner_mark() if key is None else "no"
        kept = key if key is not None else f"temporary-{os.getpid()}-{os.urandom(6).hex()}"
        name = self.reference(kept)
        said = json.dumps({**asdict(image), "env": dict(image.env)}).encode().hex()
        reply = await completed(
            self._http.call(
                "POST", "/commit", {}, container=body.name, repo=name.rpartition(":")[0], tag=kept,
                pause=int(self._pause), changes=[f"LABEL {SNAPSHOT_LABEL}={said}", f"LABEL {TEMPORARY_LABEL}={mark}"],
            )
        )  # fmt: skip
        if reply.status == _ABSENT:
            raise SandboxLost(f"its container is gone: {reply.message}")
        if not reply.ok:
            raise DriverError(f"cannot commit it: {reply.message}", step="snapshot")
        return State(key=kept, content=reply.json()["Id"], image=image, temporary=key is None)

    async def forget(self, state: State) -> None:
        """Take its name away."""
        await self._untag(self.reference(state.key))

    async def delete(self, state: State) -> None:
        """Take its name away, and its layers; the engine keeps those that somebody uses."""
        await self._untag(self.reference(state.key))
        await self._http.call("DELETE", f"/images/{state.content}")

    async def sweep(self) -> None:
        """Remove what dead owners left, and what was in use when it was given up."""
        reply = await self._http.call("GET", "/images/json", all=0, filters=json.dumps({"label": [SNAPSHOT_LABEL]}))
        for found in reply.json() if reply.ok else []:
            names = [name for name in found.get("RepoTags") or [] if name != "<none>:<none>"]
            if not names:
                await self._http.call("DELETE", f"/images/{found['Id']}")  # one that is in use stays
            elif is_orphan((found.get("Labels") or {}).get(TEMPORARY_LABEL, "")):
                for name in names:
                    await self._untag(name)

    def reference(self, key: str) -> str:
        """Name a snapshot as the engine does. `Misuse` for a key that no tag can be."""
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise Misuse(f"{key!r} is no key: up to 128 letters, digits, and . _ - after the first", field="key")
        return f"{self._repository}/snapshot:{key}"

    async def _find_snapshot(self, key: str) -> State:
        reply = await self._http.call("GET", f"/images/{self.reference(key)}/json")
        if not reply.ok:
            raise Misuse(f"there is no snapshot {key!r} here", field="image")
        found = reply.json()
        said = json.loads(bytes.fromhex(found["Config"]["Labels"][SNAPSHOT_LABEL]))
        return State(key=key, content=found["Id"], image=ImageDefaults(**said))

    def _is_ours(self, image: str) -> bool:
        return image in ("host", "bench") or image.startswith("/") or self._store.named(image) is not None

    async def _image(self, name: str) -> Image:
        return await asyncio.to_thread(resolve_root, name, self._store)

    def _ours(self, image: Image) -> str:
        name = "rootfs" if image.name.startswith("/") else image.name
        return f"{self._repository}/{name}:{image.key[:_KEY_SIZE]}"

    async def _bring(self, image: Image) -> State:
        """Bring an image of our store into the engine, once."""
        reference = self._ours(image)
        async with self._locks[reference]:
            if reference not in self._brought:
                await self._provide(reference, image)
                found = await self._look(reference)
                found.image = ImageDefaults(env=image.env, cwd=image.cwd, user=image.user)
                self._brought[reference] = found
        return self._brought[reference]

    async def _has(self, reference: str) -> bool:
        return (await self._http.call("GET", f"/images/{reference}/json")).ok

    async def _provide(self, reference: str, image: Image) -> None:
        if await self._has(reference):
            return
        repository, _, tag = reference.rpartition(":")
        pieces = rootfs_tar(image)
        try:
            reply = await self._http.upload("/images/create", pieces, fromSrc="-", repo=repository, tag=tag)
        finally:
            await asyncio.to_thread(pieces.close)
        # The status is sent before the work is done, so the body has to be looked at as well.
        if not reply.ok or b'"error"' in reply.body:
            raise DriverError(f"cannot import image {reference}: {reply.message}", step="image")
        if not await self._has(reference):
            # podman takes the name and drops the tag.
            reply = await self._http.call("POST", f"/images/{repository}:latest/tag", repo=repository, tag=tag)
            if not reply.ok:
                raise DriverError(f"cannot name image {reference}: {reply.message}", step="image")

    async def _look(self, name: str) -> State:
        reply = await self._http.call("GET", f"/images/{name}/json")
        if not reply.ok:
            raise Misuse(f"there is no image {name[:200]!r}: {reply.message}", field="image")
        found = reply.json()
        return State(key=name, content=found["Id"], image=_defaults(found.get("Config") or {}))

    async def _untag(self, reference: str) -> None:
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
            raise DriverError(f"cannot remove {reference}: {reply.message}", step="snapshot")


def _defaults(config: dict[str, Any]) -> ImageDefaults:
    env = dict(item.split("=", 1) for item in config.get("Env") or [] if "=" in item)
    return ImageDefaults(env=env, cwd=config.get("WorkingDir") or None, user=config.get("User") or None)
