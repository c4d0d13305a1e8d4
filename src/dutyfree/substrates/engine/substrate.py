"""The substrate over one engine: sandboxes are containers, in either dispatch mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dutyfree.core.contract import Capabilities, Dispatch, Sandbox
from dutyfree.core.errors import Unavailable
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.substrates.api.sandbox import API_NOTES
from dutyfree.substrates.boot import AGENT_INSIDE, KEEPER, Birth, Defaults, agent_program, boot_agent
from dutyfree.substrates.engine.container import Container
from dutyfree.substrates.engine.http import Http
from dutyfree.substrates.engine.image import Images
from dutyfree.substrates.engine.profile import Profile, container_config
from dutyfree.substrates.engine.stream import Multiplexed
from dutyfree.substrates.owning import OwningSubstrate
from dutyfree.substrates.sweep import OWNER_LABEL, is_orphan, owner_mark


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


def engine_capabilities(info: Mapping[str, Any], settings: Settings) -> Capabilities:
    """What this engine lets a container do, by its own account."""
    names = {"cpus": "CpuCfsQuota", "memory_bytes": "MemoryLimit", "pids": "PidsLimit"}
    agent = settings.dispatch == "agent"
    missing = "".join(f"; it has no cgroup for {name}" for name, said in names.items() if not info.get(said))
    notes = {
        "limits": f"the engine has no quota for disk_bytes and files{missing}",
        "storages": "writes go to the engine's own writable layer on disk, whichever is asked for",
    }
    if settings.profile == "hardened":
        notes["storages"] = "the root is read-only; /tmp, /run, /var/tmp, /root and /home are in memory"
    return Capabilities(
        isolation="namespace",
        dispatch=settings.dispatch,
        limits=frozenset(name for name, said in names.items() if info.get(said)),
        networks=frozenset({"none", "host"}),
        storages=frozenset({"memory"} if settings.profile == "hardened" else {"memory", "disk"}),
        stream=agent,
        terminal=agent,
        shell=agent,
        forward=agent,
        process_tree=agent,
        notes=notes if agent else {**notes, **API_NOTES},
    )


class EngineSubstrate(OwningSubstrate):
    """Containers of one engine. Made by `open_engine`."""

    def __init__(self, http: Http, settings: Settings, version: str, capabilities: Capabilities) -> None:
        super().__init__(settings.driver)
        self.version = version
        self.capabilities = capabilities
        self._http = http
        self._settings = settings
        self._images = Images(http, settings.driver, settings.repository)
        self._agent = str(agent_program(settings.driver)) if settings.dispatch == "agent" else None
        self._owner = owner_mark()

    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        image, defaults = await self._find_image(spec.image)
        container = Container(self._http, name, self.name)
        wanted = container_config(
            spec,
            image=image,
            command=[AGENT_INSIDE] if self._agent else KEEPER,
            owner=self._owner,
            agent=self._agent,
            profile=self._settings.profile,
            extra=self._settings.extra,
        )
        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=container.remove,
            defaults=defaults, start_ns=start_ns,
        )  # fmt: skip
        return await self._boot(container, birth, wanted)

    async def _find_image(self, name: str) -> tuple[str, Defaults]:
        """The engine's reference: names of our store come first, then the engine's own."""
        if name in ("host", "bench") or name.startswith("/") or self._store.named(name) is not None:
            return await self._images.bring(await self._image(name))
        return await self._images.known(name)

    @classmethod
    async def facts(cls, http: Http) -> Mapping[str, Any]:
        """What the engine says of itself, in Docker's words."""
        reply = await http.call("GET", "/info")
        return reply.json() if reply.ok else {}

    async def sweep(self) -> list[str]:
        """Remove containers whose owner is dead; their names."""
        reply = await self._http.call("GET", "/containers/json", all=1, filters=json.dumps({"label": [OWNER_LABEL]}))
        orphans = [
            found["Names"][0].lstrip("/")
            for found in (reply.json() if reply.ok else [])
            if is_orphan(found["Labels"].get(OWNER_LABEL, "")) and found["Names"]
        ]
        for name in orphans:
            await Container(self._http, name, self.name).remove_by_force()
        return orphans

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
