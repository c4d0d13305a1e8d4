"""The substrate over one engine: sandboxes are containers, in either dispatch mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dutyfree.core.contract import SNAPSHOT_PREFIX, Capabilities, Dispatch, Sandbox, Snapshot
from dutyfree.core.errors import DriverError, DutyfreeError, Unavailable
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.driver.owner import OWNER_LABEL, is_orphan, owner_mark
from dutyfree.substrates.api.sandbox import API_NOTES
from dutyfree.substrates.boot import AGENT_INSIDE, KEEPER, Birth, Defaults, agent_program, boot_agent
from dutyfree.substrates.engine.container import Container
from dutyfree.substrates.engine.http import Http
from dutyfree.substrates.engine.image import Images, Origin
from dutyfree.substrates.engine.profile import Profile, container_config
from dutyfree.substrates.engine.snapshot import Snapshots
from dutyfree.substrates.engine.stream import Multiplexed
from dutyfree.substrates.renewing import RenewingSubstrate


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a driver wants its engine used."""

    driver: str
    dispatch: Dispatch
    profile: Profile = "default"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Added to every container's HostConfig."""
    repository: str = "dutyfree"
    """Under which our own images are kept in the engine."""
    libpod: bool = False
    """It speaks podman's own API as well."""

    @property
    def no_snapshot(self) -> str | None:
        """Why files cannot be saved; None: they can."""
        if self.profile == "hardened":
            return "the root is read-only and what is written lies in memory, which a commit does not see"
        runtime = self.extra.get("Runtime", "runc")
        return None if runtime in ("runc", "crun") else f"{runtime} may keep writes where a commit does not see them"


LIMIT_FACTS = {"cpus": "CpuCfsQuota", "memory_bytes": "MemoryLimit", "pids": "PidsLimit"}
"""Which of an engine's facts says that it enforces a limit."""


def declared_capabilities(settings: Settings) -> list[Capabilities]:
    """Of both dispatch modes, where the engine can limit everything that engines can."""
    everything = dict.fromkeys(LIMIT_FACTS.values(), True)
    return [engine_capabilities(everything, replace(settings, dispatch=mode)) for mode in ("agent", "api")]


def engine_capabilities(info: Mapping[str, Any], settings: Settings) -> Capabilities:
    """What this engine lets a container do, by its own account."""
    agent = settings.dispatch == "agent"
    missing = "".join(f"; it has no cgroup for {name}" for name, said in LIMIT_FACTS.items() if not info.get(said))
    notes = {
        "limits": f"the engine has no quota for disk_bytes and files{missing}",
        "storages": "writes go to the engine's own writable layer on disk, whichever is asked for",
    }
    if settings.profile == "hardened":
        notes["storages"] = "the root is read-only; /tmp, /run, /var/tmp, /root and /home are in memory"
    if settings.no_snapshot is not None:
        notes["snapshot"] = notes["fork"] = settings.no_snapshot
    return Capabilities(
        isolation="namespace",
        dispatch=settings.dispatch,
        limits=frozenset(name for name, said in LIMIT_FACTS.items() if info.get(said)),
        networks=frozenset({"none", "host"}),
        storages=frozenset({"memory"} if settings.profile == "hardened" else {"memory", "disk"}),
        medium="memory" if settings.profile == "hardened" else "disk",
        users=True,
        stream=agent,
        terminal=agent,
        shell=agent,
        forward=agent,
        process_tree=agent,
        snapshot=settings.no_snapshot is None,
        fork=settings.no_snapshot is None,
        reset=True,
        notes=notes if agent else {**notes, **API_NOTES},
    )


class EngineSubstrate(RenewingSubstrate[Origin]):
    """Containers of one engine. Made by `open_engine`."""

    def __init__(self, http: Http, settings: Settings, version: str, capabilities: Capabilities) -> None:
        super().__init__(settings.driver)
        self.version = version
        self.capabilities = capabilities
        self._http = http
        self._settings = settings
        self._images = Images(http, settings.driver, settings.repository)
        self._snapshots = Snapshots(
            http, settings.driver, settings.repository, libpod=settings.libpod, pause="pids" in capabilities.limits
        )
        self._agent = str(agent_program(settings.driver)) if settings.dispatch == "agent" else None
        self._owner = owner_mark()

    async def _start(self, spec: Spec, name: str, start_ns: int, origin: Origin) -> Sandbox:
        container = Container(self._http, name, self.name)
        wanted = container_config(
            spec,
            image=origin.image,
            command=[AGENT_INSIDE] if self._agent else KEEPER,
            owner=self._owner,
            agent=self._agent,
            profile=self._settings.profile,
            extra=self._settings.extra,
        )
        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=container.remove,
            defaults=origin.defaults, start_ns=start_ns,
        )  # fmt: skip
        return await self._boot(container, birth, wanted)

    async def _find(self, image: str) -> Origin:
        """Snapshots and names of our store come first, then the engine's own."""
        if image.startswith(SNAPSHOT_PREFIX):
            return await self._snapshots.find(image.removeprefix(SNAPSHOT_PREFIX))
        if self._is_ours(image):
            return await self._images.bring(await self._image(image))
        return await self._images.known(image)

    async def image_key(self, image: str) -> str:
        """The engine's own id of what the name means."""
        return (await self._find(image)).image

    async def image_bytes(self, image: str) -> int | None:
        """As our own store has it, or the engine for its own."""
        if self._is_ours(image):
            return await super().image_bytes(image)
        return await self._images.size(image)

    async def holds(self, image: str) -> bool:
        """The engine has it already."""
        if image.startswith(SNAPSHOT_PREFIX):
            return await self._snapshots.has(image.removeprefix(SNAPSHOT_PREFIX))
        if not self._is_ours(image):
            return await self._images.has(image)
        try:
            return await self._images.has(self._images.reference(await self._image(image)))
        except DutyfreeError:
            return False

    def _is_ours(self, image: str) -> bool:
        return image in ("host", "bench") or image.startswith("/") or self._store.named(image) is not None

    async def _save(self, name: str, origin: Origin, key: str | None, spec: Spec) -> Snapshot:
        return await self._snapshots.save(name, Defaults(**spec.over(origin.defaults)), key)

    async def remove_snapshot(self, key: str) -> None:
        """Take an image of ours out of the engine."""
        await self._snapshots.remove(key)

    async def close(self) -> None:
        """Destroy what is left, then the snapshots that are nobody else's."""
        try:
            await super().close()
        finally:
            with suppress(Unavailable):
                await self._snapshots.close()

    @classmethod
    async def facts(cls, http: Http) -> Mapping[str, Any]:
        """What the engine says of itself, in Docker's words."""
        reply = await http.call("GET", "/info")
        return reply.json() if reply.ok else {}

    async def sweep(self) -> list[str]:
        """Remove containers and snapshots whose owner is dead; the containers' names.

        One that the engine cannot remove (nothing runs in it by then) keeps nobody from working here, and is not waited for.
        """
        reply = await self._http.call("GET", "/containers/json", all=1, filters=json.dumps({"label": [OWNER_LABEL]}))
        orphans = [
            found["Names"][0].lstrip("/")
            for found in (reply.json() if reply.ok else [])
            if is_orphan(found["Labels"].get(OWNER_LABEL, "")) and found["Names"]
        ]
        removed = []
        for name in orphans:
            with suppress(DriverError):
                await Container(self._http, name, self.name).remove_by_force(wait=False)
                removed.append(name)
        await self._snapshots.sweep()
        return removed

    async def _boot(self, container: Container, birth: Birth, wanted: Mapping[str, Any]) -> Sandbox:
        connection = None
        try:
            await container.create(wanted)
            connection, early = await container.attach()
            await container.start()
        except BaseException:
            if connection is not None:
                connection.close()
            await finish(container.remove())
            raise
        if self._agent is not None:
            return await boot_agent(birth, Multiplexed(connection, early))
        return self._reached_by_exec(birth, container.execute, connection, container.remove)


Kind = TypeVar("Kind", bound=EngineSubstrate)


async def open_engine(path: str, settings: Settings, kind: type[Kind]) -> Kind:
    """Connect, look, sweep."""
    http = Http(path, settings.driver)
    version = await http.call("GET", "/version")
    if not version.ok:
        raise Unavailable(f"the engine at {path} answers {version.message}", driver=settings.driver)
    facts = await kind.facts(http)
    label = (
        f"{settings.driver} {version.json()['Version']}, {facts.get('Driver')}, {facts.get('DefaultRuntime') or 'runc'}"
    )
    substrate = kind(http, settings, label, engine_capabilities(facts, settings))
    with suppress(Unavailable):
        await substrate.sweep()
    return substrate
