"""Which image of the engine a spec means; those of our own store are brought in once, under their content key."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from dutyfree.core.errors import DriverError, Misuse
from dutyfree.image.export import rootfs_tar
from dutyfree.image.resolve import Image
from dutyfree.substrates.boot import Defaults
from dutyfree.substrates.engine.http import Http

_KEY_SIZE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a container is made from."""

    image: str
    """The engine's own id, which names content and never changes its meaning."""
    defaults: Defaults


class Images:
    """Images of one engine, remembered."""

    def __init__(self, http: Http, driver: str, repository: str) -> None:
        self._http = http
        self._driver = driver
        self._repository = repository
        self._known: dict[str, Origin] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def reference(self, image: Image) -> str:
        """Under which name the engine keeps one of our own."""
        name = "rootfs" if image.name.startswith("/") else image.name
        return f"{self._repository}/{name}:{image.key[:_KEY_SIZE]}"

    async def bring(self, image: Image) -> Origin:
        """One of our own, once the engine has it, and what the image says of itself."""
        reference = self.reference(image)
        async with self._locks[reference]:
            if reference not in self._known:
                await self._provide(reference, image)
                defaults = Defaults(env=image.env, cwd=image.cwd, user=image.user)
                self._known[reference] = Origin(image=(await self._look(reference)).image, defaults=defaults)
        return self._known[reference]

    async def known(self, name: str) -> Origin:
        """One of the engine's own. `Misuse` if it has none of that name."""
        if name not in self._known:
            self._known[name] = await self._look(name)
        return self._known[name]

    async def has(self, reference: str) -> bool:
        """The engine has an image of that name."""
        return (await self._http.call("GET", f"/images/{reference}/json")).ok

    async def size(self, name: str) -> int | None:
        """Bytes of one of the engine's own; None if it does not tell."""
        reply = await self._http.call("GET", f"/images/{name}/json")
        found = reply.json().get("Size") if reply.ok else None
        return found if isinstance(found, int) else None

    async def _provide(self, reference: str, image: Image) -> None:
        if await self.has(reference):
            return
        repository, _, tag = reference.rpartition(":")
        pieces = rootfs_tar(image)
        try:
            reply = await self._http.upload("/images/create", pieces, fromSrc="-", repo=repository, tag=tag)
        finally:
            await asyncio.to_thread(pieces.close)
        # The status is sent before the work is done, so the body has to be looked at as well.
        if not reply.ok or b'"error"' in reply.body:
            raise DriverError(f"cannot import image {reference}: {reply.message}", driver=self._driver, step="image")
        if not await self.has(reference):
            # podman takes the name and drops the tag.
            reply = await self._http.call("POST", f"/images/{repository}:latest/tag", repo=repository, tag=tag)
            if not reply.ok:
                raise DriverError(f"cannot name image {reference}: {reply.message}", driver=self._driver, step="image")

    async def _look(self, name: str) -> Origin:
        reply = await self._http.call("GET", f"/images/{name}/json")
        if not reply.ok:
            raise Misuse(f"there is no image {name[:200]!r}: {reply.message}", field="image", driver=self._driver)
        found = reply.json()
        config = found.get("Config") or {}
        env = dict(item.split("=", 1) for item in config.get("Env") or [] if "=" in item)
        defaults = Defaults(env=env, cwd=config.get("WorkingDir") or None, user=config.get("User") or None)
        return Origin(image=found["Id"], defaults=defaults)
