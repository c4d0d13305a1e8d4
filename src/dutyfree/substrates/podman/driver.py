"""How the registry finds `podman`: its socket, or a service of our own; root's or, without privileges, one's own user's.

podman                       our agent is the container's main process, on one attached stream
podman?dispatch=api          an exec call per action
podman?profile=hardened      as for docker
podman?socket=/path          a service that is up, also an ordinary user's
podman?user=name             a service of our own, run by that ordinary user: no root of the machine behind its containers
podman?runtime=/path         for a service of our own
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.core.pending import finish
from dutyfree.substrates.engine.http import Http
from dutyfree.substrates.engine.options import ask, check_options, dispatch_of, profile_of
from dutyfree.substrates.engine.substrate import (
    EngineSubstrate,
    Settings,
    declared_capabilities,
    engine_capabilities,
    open_engine,
)
from dutyfree.substrates.podman.account import Account
from dutyfree.substrates.podman.service import ENABLE, Service

_OPTIONS = ("dispatch", "profile", "socket", "runtime", "user")


class PodmanSubstrate(EngineSubstrate):
    """An engine whose service may be ours."""

    service: Service | None = None

    @classmethod
    async def facts(cls, http: Http) -> Mapping[str, Any]:
        """Its Docker-compatible answer claims limits that nobody enforces without root; its own one lists controllers."""
        reply = await http.call("GET", "/v4.0.0/libpod/info")
        found = reply.json()["host"] if reply.ok else {}
        return {**await super().facts(http), **_limits(found.get("cgroupControllers") or [])}

    async def close(self) -> None:
        """Destroy what is left, then the service if it is ours."""
        await super().close()
        if self.service is not None:
            await self.service.close()


class PodmanDriver(Driver):
    """The entry point's object."""

    name = "podman"
    summary = "containers of podman, by its Docker-compatible API; also without root"

    def declared(self) -> list[Capabilities]:
        """For root on a machine with cgroups."""
        return declared_capabilities(self._settings({}))

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
        check_options(options, _OPTIONS, self.name)
        settings = self._settings(options)
        if "socket" in options and "user" in options:
            raise Misuse("belongs to a service of our own, and not to a socket", field="user", driver=self.name)
        for path in [options["socket"]] if "socket" in options else [] if "user" in options else _sockets():
            if os.path.exists(path) and isinstance(ask(path, "/version"), dict):
                return await open_engine(path, settings, PodmanSubstrate)
        if "socket" in options:
            raise Unavailable(f"no service answers at {options['socket']}", enable=ENABLE, driver=self.name)
        service = await Service.start(options.get("runtime"), options.get("user"))
        try:
            substrate = await open_engine(service.socket, settings, PodmanSubstrate)
        except BaseException:
            await finish(service.close())
            raise
        substrate.service = service
        return substrate

    def _settings(self, options: Mapping[str, str]) -> Settings:
        return Settings(
            driver=self.name,
            dispatch=dispatch_of(options),
            profile=profile_of(options),
            repository="localhost/dutyfree",
            libpod=True,
        )

    def _found(self, reason: str, version: str, info: Mapping[str, object]) -> Availability:
        offered: Capabilities = engine_capabilities(info, self._settings({}))
        return Availability(available=True, reason=reason, version=f"podman {version}", capabilities=offered)


driver = PodmanDriver()


def _limits(controllers: Sequence[str]) -> dict[str, bool]:
    return {
        "CpuCfsQuota": "cpu" in controllers,
        "MemoryLimit": "memory" in controllers,
        "PidsLimit": "pids" in controllers,
    }


def _sockets() -> list[str]:
    """Where podman's own units put theirs."""
    if os.geteuid() == 0:
        return ["/run/podman/podman.sock"]
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    return [f"{runtime}/podman/podman.sock"]
