"""`docker`: containers of a Docker engine.

docker                       our agent is the container's main process, on one hijacked stream
docker?dispatch=api          an exec call per action, as people do
docker?profile=hardened      no capabilities, read-only root, no new privileges, bounded by default
docker?socket=/path          another engine · docker?runtime=runsc  another runtime of the same engine
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from dutyfree.core.checkout import make
from dutyfree.core.contract import Availability, Capabilities, Dispatch, Driver, Substrate
from dutyfree.core.errors import Unavailable
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

OUR_SOCKET = "/run/dutyfree/docker/docker.sock"
"""Where `make substrates` puts a daemon of ours."""

SOCKETS = ("/var/run/docker.sock", OUR_SOCKET)
ENABLE = make("substrates", "apt-get install -y docker.io")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Written in the substrate's name."""

    dispatch: Dispatch = "agent"
    profile: Profile = "default"
    socket: str | None = None
    runtime: str | None = None


class DockerDriver(Driver):
    """The entry point's object."""

    name = "docker"
    summary = "containers of a Docker engine, by its API"

    def declared(self) -> list[Capabilities]:
        """Of an engine with cgroups."""
        return declared_capabilities(EngineSettings(driver=self.name))

    def probe(self) -> Availability:
        """Ask the engine what it is."""
        reasons = []
        for path in _sockets():
            info = ask(path, "/info")
            if isinstance(info, dict) and "ServerVersion" in info:
                return Availability(
                    available=True,
                    reason=f"engine at {path}, {info.get('Driver')}, {info.get('DefaultRuntime')}",
                    version=f"docker {info['ServerVersion']}",
                    capabilities=engine_capabilities(info, EngineSettings(driver=self.name)),
                )
            reasons.append(f"{path}: {info if isinstance(info, str) else 'it is no engine'}")
        if not shutil.which("dockerd"):
            reasons.append("dockerd is not installed")
        return Availability(available=False, reason="no engine answers: " + "; ".join(reasons), enable=ENABLE)

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Find the engine; remove what dead owners left in it."""
        given = read_options(options, Options, driver=self.name)
        extra = {"Runtime": given.runtime} if given.runtime else {}
        settings = EngineSettings(driver=self.name, dispatch=given.dispatch, profile=given.profile, extra=extra)
        sockets = [given.socket] if given.socket else _sockets()
        for path in sockets:
            if isinstance(ask(path, "/version"), dict):
                http = Http(path, self.name)
                return await open_engine(http, settings, await engine_facts(http))
        raise Unavailable(f"no engine answers at {' or '.join(sockets)}", enable=ENABLE, driver=self.name)


driver = DockerDriver()


def _sockets() -> list[str]:
    """Sockets to look at: DOCKER_HOST alone if it is set."""
    address = os.environ.get("DOCKER_HOST", "")
    return [address.removeprefix("unix://")] if address.startswith("unix://") else list(SOCKETS)
