"""Containers of an engine that speaks the Docker API on a unix socket: what `docker` and `podman` share.

A container's main process reads the attached stdin and ends with it: our agent, or in `api` mode a shell that only
holds the container. When its one client is gone, the engine closes that stream and then removes the container, so
that a kill -9 of the client leaves nothing running.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dutyfree.core.contract import Capabilities, Dispatch
from dutyfree.core.errors import DriverError, Misuse, SandboxLost, Saturated, Unavailable
from dutyfree.core.pending import completed
from dutyfree.core.spec import Spec
from dutyfree.driver.agent import AGENT_INSIDE, agent_program
from dutyfree.driver.backend import AgentStream, Backend, Body, Order
from dutyfree.driver.exec import HOLD_COMMAND, HOLD_PROCESSES
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink
from dutyfree.driver.exec_command import is_refusal, is_user_refusal
from dutyfree.driver.offer import HARDENED_CAPABILITIES, Profile, capabilities_for
from dutyfree.driver.owner import OWNER_LABEL, is_orphan, owner_mark
from dutyfree.driver.program import PIECE, feed, poll
from dutyfree.driver.substrate import DriverSubstrate
from dutyfree.image.store import Store
from dutyfree.substrates.container.engine_http import Demultiplexer, Http, Multiplexed, Reply
from dutyfree.substrates.container.engine_image import EngineStates

_ABSENT = 404
_FIRST = 4096
_NOT_STARTED = (125, 126, 127)
_REMOVAL_S = 30.0
_OWN_REMOVAL_S = 10.0
_HARDENED_PIDS = 1024
_TMPFS_PATHS = ("/tmp", "/run", "/var/tmp", "/root", "/home")  # noqa: S108 - mount points inside
_TMPFS = "rw,exec,nosuid,nodev,size=1g"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """A driver's settings for its engine."""

    driver: str
    dispatch: Dispatch = "agent"
    profile: Profile = "default"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Added to every container's HostConfig."""
    repository: str = "dutyfree"
    """Under which our own images are kept in the engine."""
    libpod: bool = False
    """It speaks podman's own API as well."""

    @property
    def no_snapshot(self) -> str | None:
        """Reason why files cannot be saved; None: they can."""
        if self.profile == "hardened":
            return "the root is read-only and what is written lies in memory, which a commit does not see"
        runtime = self.extra.get("Runtime", "runc")
        return None if runtime in ("runc", "crun") else f"{runtime} may keep writes where a commit does not see them"


LIMIT_FACTS = {"cpus": "CpuCfsQuota", "memory_bytes": "MemoryLimit", "pids": "PidsLimit"}
"""Which of an engine's facts says that it enforces a limit."""


def declared_capabilities(settings: EngineSettings) -> list[Capabilities]:
    """Of both dispatch modes, where the engine can limit everything that engines can."""
    everything = dict.fromkeys(LIMIT_FACTS.values(), True)
    return [engine_capabilities(everything, replace(settings, dispatch=mode)) for mode in ("agent", "api")]


def engine_capabilities(info: Mapping[str, Any], settings: EngineSettings) -> Capabilities:
    """Capabilities of this engine's containers, by the engine's own account."""
    missing = "".join(f"; it has no cgroup for {name}" for name, said in LIMIT_FACTS.items() if not info.get(said))
    notes = {
        "limits": f"the engine has no quota for disk_bytes and files{missing}",
        "storages": "writes go to the engine's own writable layer on disk, whichever is asked for",
    }
    if settings.profile == "hardened":
        notes["storages"] = "the root is read-only; /tmp, /run, /var/tmp, /root and /home are in memory"
    if settings.no_snapshot is not None:
        notes["snapshot"] = notes["fork"] = settings.no_snapshot
    return capabilities_for(
        settings.dispatch,
        isolation="namespace",
        limits={name for name, said in LIMIT_FACTS.items() if info.get(said)},
        networks={"none", "host"},
        storages={"memory"} if settings.profile == "hardened" else {"memory", "disk"},
        medium="memory" if settings.profile == "hardened" else "disk",
        users=True,
        snapshot=settings.no_snapshot is None,
        fork=settings.no_snapshot is None,
        reset=True,
        notes=notes,
    )


class Container(Body):
    """One container, by the name that we gave it: it can be removed even if its creation was never answered."""

    def __init__(self, http: Http, name: str, wanted: Mapping[str, Any] | None = None, home: str | None = None) -> None:
        """`wanted` is the body of the create request; None: for one that is to be removed."""
        self.home = home
        self.name = name
        self._http = http
        self._wanted = wanted
        self._connection: socket.socket | None = None
        self._early = b""
        self._stream_of_agent: Multiplexed | None = None

    async def start(self) -> None:
        """Create it, attach to its main process, start that."""
        reply = await completed(self._http.call("POST", "/containers/create", self._wanted, name=self.name))
        if not reply.ok:
            raise _refused("create", reply)
        self._connection, self._early = await self._http.hijack(
            f"/containers/{self.name}/attach", stream=1, stdin=1, stdout=1, stderr=1
        )
        reply = await completed(self._http.call("POST", f"/containers/{self.name}/start"))
        if not reply.ok:
            raise _refused("start", reply)

    async def agent(self) -> AgentStream:
        """Give the attached connection, without the engine's framing."""
        assert self._connection is not None  # noqa: S101 - it was started
        self._stream_of_agent = Multiplexed(self._connection, self._early)
        return self._stream_of_agent

    async def cause(self) -> str | None:
        """Quote what the main process said on stderr at last."""
        said = self._stream_of_agent.stderr if self._stream_of_agent is not None else b""
        return said.decode(errors="replace").strip() or None

    async def remove(self) -> None:
        """Kill it and wait until it is gone; fine if it is already."""
        if self._connection is not None and self._stream_of_agent is None:
            self._connection.close()
        place = f"/containers/{self.name}"
        found = await self._http.call("GET", f"{place}/json")
        if found.status == _ABSENT:
            return
        if found.ok and found.json()["State"]["Status"] != "created":
            # The engine removes it by itself, after it has unmounted everything: a removal by force would overtake that.
            await self._http.call("POST", f"{place}/kill", signal="KILL")
            with suppress(TimeoutError):
                async with asyncio.timeout(_OWN_REMOVAL_S):
                    await self._http.call("POST", f"{place}/wait", condition="removed")
        await self.remove_by_force()

    async def remove_by_force(self, *, wait: bool = True) -> None:
        """Remove one that nobody waits for, in whatever state it is. `wait`: for a removal that is under way."""
        place = f"/containers/{self.name}"
        reply = await self._http.call("DELETE", place, force=1, v=1)
        if reply.ok or reply.status == _ABSENT:
            return

        async def gone() -> bool | None:
            return True if (await self._http.call("GET", f"{place}/json")).status == _ABSENT else None

        if await poll(gone, deadline_s=_REMOVAL_S if wait else 0) is None:
            raise DriverError(f"cannot remove it: {reply.message}", step="destroy", sandbox=self.name)

    async def execute(self, call: ExecCall, sink: Sink) -> ExecEnd:
        """Make an exec call: exec create, start and inspect."""
        wanted = {
            "Cmd": list(call.argv),
            "Env": [f"{name}={value}" for name, value in call.env.items()],
            "WorkingDir": call.cwd or "",
            "User": call.user or "",
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
        }
        made = await self._http.call("POST", f"/containers/{self.name}/exec", wanted)
        if not made.ok:
            if is_user_refusal(made.message):
                return ExecEnd(exit_code=126, refusal=made.message)
            raise SandboxLost(f"its container is gone: {made.message}", sandbox=self.name)
        number = made.json()["Id"]
        try:
            first = await self._stream(number, call, sink)
        except DriverError as error:
            if is_refusal(error.message):
                return ExecEnd(exit_code=126, refusal=error.message)
            raise SandboxLost(f"its container is gone: {error.message}", sandbox=self.name) from error
        reply = await self._http.call("GET", f"/exec/{number}/json")
        found = reply.json() if reply.ok else {}
        code = found.get("ExitCode")
        if code is None:
            raise SandboxLost("its container ended", sandbox=self.name)
        # A process that never was has no pid (podman: none has, afterwards), and its output is the engine's explanation.
        said = first.decode(errors="replace") if found.get("Pid") == 0 and code in _NOT_STARTED else ""
        return ExecEnd(exit_code=code, refusal=said if is_refusal(said) else None)

    async def _stream(self, number: str, call: ExecCall, sink: Sink) -> bytes:
        """Feed and drain a started exec; gives the beginning of its output."""
        connection, early = await self._http.hijack(f"/exec/{number}/start", {"Detach": False, "Tty": False})
        pieces: list[tuple[int, bytes]] = []
        apart = Demultiplexer(lambda stream, data: pieces.append((stream, bytes(data))))
        loop = asyncio.get_running_loop()
        feeder = asyncio.ensure_future(feed(connection, call))
        first = b""
        try:
            while True:
                apart.feed(early)
                for stream, data in pieces:
                    first = (first + data)[:_FIRST]
                    await sink.add(stream, data)
                pieces.clear()
                early = await loop.sock_recv(connection, PIECE)
                if not early:
                    break
        except ConnectionError:
            pass  # the exit code tells whether that matters
        finally:
            feeder.cancel()
            await asyncio.wait({feeder})
            connection.close()
        return first


class EngineBackend(Backend):
    """Containers of one engine. Made by `open_engine`."""

    def __init__(
        self, http: Http, settings: EngineSettings, version: str, capabilities: Capabilities, stack: AsyncExitStack
    ) -> None:
        """`stack` gets what ends with the connection."""
        self.name = settings.driver
        self.version = version
        self.capabilities = capabilities
        pause = "pids" in capabilities.limits
        store = Store.default()
        stack.callback(store.close)
        self.images = EngineStates(http, store, settings.repository, libpod=settings.libpod, pause=pause)
        self.states = self.images
        self._http = http
        self._settings = settings
        self._agent = str(agent_program(self.name)) if settings.dispatch == "agent" else None
        self._mark = owner_mark()
        self.owned = stack

    def body(self, order: Order) -> Container:
        """One container."""
        assert order.state is not None  # noqa: S101 - there are states
        wanted = container_config(
            order,
            image=str(order.state.content),
            command=[AGENT_INSIDE] if self._agent else HOLD_COMMAND,
            owner=self._mark,
            agent=self._agent,
            profile=self._settings.profile,
            extra=self._settings.extra,
        )
        return Container(self._http, order.id, wanted, home=None if self._agent else "/root")

    async def image_key(self, image: str) -> str:
        """Give the engine's own id of what the name means."""
        return str((await self.images.find(image)).content)

    async def image_bytes(self, image: str) -> int | None:
        """Ask our store for its own, the engine for the rest."""
        return await self.images.size(image)

    async def sweep(self) -> Sequence[str]:
        """Remove containers and snapshots whose owner is dead; the containers' names.

        One that the engine cannot remove (nothing runs in it by then) keeps nobody from working here: it is not waited for.
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
                await Container(self._http, name).remove_by_force(wait=False)
                removed.append(name)
        await self.images.sweep()
        return removed

    async def close(self) -> None:
        """Delete the images that were in use when they were given up; release store and service."""
        async with self.owned:
            with suppress(Unavailable):
                await self.images.sweep()


async def engine_facts(http: Http) -> Mapping[str, Any]:
    """Ask the engine for what it says of itself, in Docker's words."""
    reply = await http.call("GET", "/info")
    return reply.json() if reply.ok else {}


async def open_engine(
    http: Http, settings: EngineSettings, facts: Mapping[str, Any], service: AsyncExitStack | None = None
) -> DriverSubstrate:
    """Connect, and sweep. `service` is what ends with the substrate, or if this fails."""
    async with service or AsyncExitStack() as stack:
        version = await http.call("GET", "/version")
        if not version.ok:
            raise Unavailable(f"the engine at {http.path} answers {version.message}", driver=settings.driver)
        parts = version.json()["Version"], facts.get("Driver"), facts.get("DefaultRuntime") or "runc"
        label = f"{settings.driver} {', '.join(map(str, parts))}"
        backend = EngineBackend(http, settings, label, engine_capabilities(facts, settings), stack)
        with suppress(Unavailable):
            await backend.sweep()
        backend.owned = stack.pop_all()
        return DriverSubstrate(backend)


def container_config(
    order: Order,
    *,
    image: str,
    command: Sequence[str],
    owner: str,
    agent: str | None,
    profile: Profile,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a create request. `agent` is the program on the engine's machine; `extra` goes into HostConfig."""
    spec = order.spec
    return {
        "Image": image,
        "Entrypoint": list(command),
        "Cmd": [],
        "User": "0",
        "WorkingDir": "/",
        # As `native` has it. The engine's own is the container's id, and would tell one sandbox from the next after a reset.
        "Hostname": "sandbox" if order.network == "none" else "",
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
        "Labels": {OWNER_LABEL: owner},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": False,
        "HostConfig": {
            "NetworkMode": order.network,
            "AutoRemove": True,
            # The stream is our protocol or nothing: a log of it would grow with every byte.
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
            "Binds": [f"{agent}:{AGENT_INSIDE}:ro"] if agent else [],
            **_limits(spec, keepers=1 if agent else HOLD_PROCESSES),
            **(_hardened(spec) if profile == "hardened" else {}),
            **extra,
        },
    }


def _limits(spec: Spec, *, keepers: int) -> dict[str, Any]:
    limits, wanted = spec.limits, {}
    if limits.cpus is not None:
        wanted["NanoCpus"] = int(limits.cpus * 1e9)
    if limits.memory_bytes is not None:
        # The same for both: otherwise the engine adds as much swap again.
        wanted["Memory"] = wanted["MemorySwap"] = limits.memory_bytes
    if limits.pids is not None:
        wanted["PidsLimit"] = limits.pids + keepers
    return wanted


def _hardened(spec: Spec) -> dict[str, Any]:
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory_bytes = spec.limits.memory_bytes or min(4 << 30, ram_bytes // 2)
    return {
        "CapDrop": ["ALL"],
        "CapAdd": list(HARDENED_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "Tmpfs": dict.fromkeys(_TMPFS_PATHS, _TMPFS),
        "IpcMode": "private",
        "PidsLimit": (spec.limits.pids or _HARDENED_PIDS) + HOLD_PROCESSES,
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,
    }


def _refused(verb: Literal["create", "start"], reply: Reply) -> Exception:
    said = reply.message
    if reply.status == _ABSENT and "image" in said.lower():
        return Misuse(said, field="image")
    if is_user_refusal(said):
        return Misuse(said, field="user")
    if "no space left" in said.lower() or "cannot allocate memory" in said.lower():
        return Saturated(said, step="create")
    return DriverError(f"the engine refused to {verb} a container: {said}", step="create")
