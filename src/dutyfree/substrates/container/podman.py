"""`podman`: containers of podman, by its socket or a service of our own, as root or as an ordinary user.

podman                       our agent is the container's main process, on one attached stream
podman?dispatch=api          an exec call per action
podman?profile=hardened      as for docker
podman?socket=/path          a service that is up, also an ordinary user's
podman?user=name             a service of our own, run by that ordinary user: no root stands behind its containers
podman?runtime=/path         for a service of our own
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from dutyfree.core.contract import Availability, Capabilities, Dispatch, Driver, Substrate
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.driver.offer import Profile
from dutyfree.driver.options import read_options
from dutyfree.substrates.container.engine import (
    EngineSettings,
    declared_capabilities,
    engine_capabilities,
    engine_facts,
    open_engine,
)
from dutyfree.substrates.container.engine_http import Http, ask
from dutyfree.substrates.container.podman_service import ENABLE, Account, Service


@dataclass(frozen=True, kw_only=True)
class Options:
    """Written in the substrate's name."""

    dispatch: Dispatch = "agent"
    profile: Profile = "default"
    socket: str | None = None
    runtime: str | None = None
    user: str | None = None


class PodmanDriver(Driver):
    """The entry point's object."""

    name = "podman"
    summary = "containers of podman, by its Docker-compatible API; also without root"

    def declared(self) -> list[Capabilities]:
        """For root on a machine with cgroups."""
        return declared_capabilities(_settings(Options()))

    def probe(self) -> Availability:
        """A socket that answers, or the program."""
        for path in _sockets():
            info = ask(path, "/info") if os.path.exists(path) else ""
            own = ask(path, "/v4.0.0/libpod/info") if isinstance(info, dict) else ""
            if isinstance(info, dict) and isinstance(own, dict) and "ServerVersion" in info:
                known = {**info, **_limits(own.get("host", {}).get("cgroupControllers") or [])}
                return self._found(f"service at {path}", info["ServerVersion"], known)
        program = shutil.which("podman")
        if program is None:
            return Availability(available=False, reason="podman is not installed", enable=ENABLE)
        try:
            Account.find(None)
        except Unavailable as error:
            return Availability(available=False, reason=error.reason, enable=error.enable)
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split()
        who = "as root" if os.geteuid() == 0 else "rootless"
        return self._found(
            f"{program} with a service of our own, {who}",
            said[-1] if said else "",
            _limits(("cpu", "memory", "pids") if os.geteuid() == 0 else ()),
        )

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Find a service or start one; remove what dead owners left in it."""
        given = read_options(options, Options, driver=self.name)
        if given.socket and given.user:
            raise Misuse("belongs to a service of our own, and not to a socket", field="user", driver=self.name)
        for path in [given.socket] if given.socket else [] if given.user else _sockets():
            if os.path.exists(path) and isinstance(ask(path, "/version"), dict):
                http = Http(path, self.name)
                return await open_engine(http, _settings(given), await _facts(http))
        if given.socket:
            raise Unavailable(f"no service answers at {given.socket}", enable=ENABLE, driver=self.name)
        async with AsyncExitStack() as stack:
            service = await Service.start(given.runtime, given.user)
            stack.push_async_callback(service.close)
            http = Http(service.socket, self.name)
            return await open_engine(http, _settings(given), await _facts(http), stack.pop_all())

    def _found(self, reason: str, version: str, info: Mapping[str, object]) -> Availability:
        offered: Capabilities = engine_capabilities(info, _settings(Options()))
        return Availability(available=True, reason=reason, version=f"podman {version}", capabilities=offered)


driver = PodmanDriver()


def _settings(given: Options) -> EngineSettings:
    repository = "localhost/dutyfree"
    return EngineSettings(
        driver="podman", dispatch=given.dispatch, profile=given.profile, repository=repository, libpod=True
    )


async def _facts(http: Http) -> Mapping[str, Any]:
    """Its Docker-compatible answer claims limits that nobody enforces without root; its own one lists controllers."""
    reply = await http.call("GET", "/v4.0.0/libpod/info")
    found = reply.json()["host"] if reply.ok else {}
    return {**await engine_facts(http), **_limits(found.get("cgroupControllers") or [])}


def _limits(controllers: Sequence[str]) -> dict[str, bool]:
    return {
        "CpuCfsQuota": "cpu" in controllers,
        "MemoryLimit": "memory" in controllers,
        "PidsLimit": "pids" in controllers,
    }


def _sockets() -> list[str]:
    """Sockets that podman's own units make."""
    if os.geteuid() == 0:
        return ["/run/podman/podman.sock"]
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    return [f"{runtime}/podman/podman.sock"]
