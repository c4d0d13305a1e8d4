"""Which image of the engine a spec means; those of our own store are brought in once, under their content key."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from dutyfree.core.errors import DriverError, Misuse
from dutyfree.substrates.boot import Defaults
from dutyfree.substrates.engine.http import Http
from dutyfree.substrates.image.export import rootfs_tar
from dutyfree.substrates.image.resolve import Image

_KEY_SIZE = 32


class Images:
    """Images of one engine, remembered."""

    def __init__(self, http: Http, driver: str, repository: str) -> None:
        self._http = http
        self._driver = driver
        self._repository = repository
        self._theirs: dict[str, Defaults] = {}
        self._brought: set[str] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def bring(self, image: Image) -> tuple[str, Defaults]:
        """One of our own: its reference, once the engine has it, and what the image says of itself."""
        name = "rootfs" if image.name.startswith("/") else image.name
        reference = f"{self._repository}/{name}:{image.key[:_KEY_SIZE]}"
        async with self._locks[reference]:
            if reference not in self._brought:
                await self._provide(reference, image)
                self._brought.add(reference)
        return reference, Defaults(env=image.env, cwd=image.cwd, user=image.user)

    async def known(self, name: str) -> tuple[str, Defaults]:
        """One of the engine's own. `Misuse` if it has none of that name."""
        if name not in self._theirs:
            self._theirs[name] = await self._look(name)
        return name, self._theirs[name]

    async def _provide(self, reference: str, image: Image) -> None:
        if (await self._http.call("GET", f"/images/{reference}/json")).ok:
            return
        repository, _, tag = reference.rpartition(":")
        pieces = rootfs_tar(image)
        try:
            reply = await self._http.upload("/images/create", pieces, fromSrc="-", repo=repository, tag=tag)
        finally:
            await asyncio.to_thread(pieces.close)
        # The status is sent before the work is done, so the body has to be looked at as well.
        if not reply.ok or b'"error"' in reply.body:
            raise DriverError(f"cannot import image {reference}: {reply.message}", driver=self._driver, stage="image")
        if not (await self._http.call("GET", f"/images/{reference}/json")).ok:
            # podman takes the name and drops the tag.
            reply = await self._http.call("POST", f"/images/{repository}:latest/tag", repo=repository, tag=tag)
            if not reply.ok:
                raise DriverError(f"cannot name image {reference}: {reply.message}", driver=self._driver, stage="image")

    async def _look(self, name: str) -> Defaults:
        reply = await self._http.call("GET", f"/images/{name}/json")
        if not reply.ok:
            raise Misuse(f"there is no image {name[:200]!r}: {reply.message}", field="image", driver=self._driver)
        config = reply.json().get("Config") or {}
        env = dict(item.split("=", 1) for item in config.get("Env") or [] if "=" in item)
        return Defaults(env=env, cwd=config.get("WorkingDir") or None, user=config.get("User") or None)
