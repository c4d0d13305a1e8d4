"""How the registry finds `docker`: where the engine's socket may be, what it says, and how to connect.

docker                       our agent is the container's main process, on one hijacked stream
docker?dispatch=api          an exec call per action, as people do
docker?profile=hardened      no capabilities, read-only root, no new privileges, bounded by default
docker?socket=/path          another engine · docker?runtime=runsc  another runtime of the same engine
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from dutyfree.core.checkout import make
from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.core.errors import Unavailable
from dutyfree.substrates.engine.options import ask, check_options, dispatch_of, profile_of
from dutyfree.substrates.engine.substrate import (
    EngineSubstrate,
    Settings,
    declared_capabilities,
    engine_capabilities,
    open_engine,
)

OUR_SOCKET = "/run/dutyfree/docker/docker.sock"
"""Where `make substrates` puts a daemon of ours."""

SOCKETS = ("/var/run/docker.sock", OUR_SOCKET)
ENABLE = make("substrates", "apt-get install -y docker.io")
_OPTIONS = ("dispatch", "profile", "socket", "runtime")


class DockerDriver(Driver):
    """The entry point's object."""

    name = "docker"
    summary = "containers of a Docker engine, by its API"

    def declared(self) -> list[Capabilities]:
        """Of an engine with cgroups."""
        return declared_capabilities(Settings(driver=self.name, dispatch="agent"))

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
                    capabilities=engine_capabilities(info, Settings(driver=self.name, dispatch="agent")),
                )
            reasons.append(f"{path}: {info if isinstance(info, str) else 'it is no engine'}")
        if not shutil.which("dockerd"):
            reasons.append("dockerd is not installed")
        return Availability(available=False, reason="no engine answers: " + "; ".join(reasons), enable=ENABLE)

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Find the engine; remove what dead owners left in it."""
        check_options(options, _OPTIONS, self.name)
        extra = {"Runtime": options["runtime"]} if "runtime" in options else {}
        settings = Settings(driver=self.name, dispatch=dispatch_of(options), profile=profile_of(options), extra=extra)
        sockets = [options["socket"]] if "socket" in options else _sockets()
        for path in sockets:
            if isinstance(ask(path, "/version"), dict):
                return await open_engine(path, settings, EngineSubstrate)
        raise Unavailable(f"no engine answers at {' or '.join(sockets)}", enable=ENABLE, driver=self.name)


driver = DockerDriver()


def _sockets() -> list[str]:
    """Where to look: DOCKER_HOST alone if it is set."""
    address = os.environ.get("DOCKER_HOST", "")
    return [address.removeprefix("unix://")] if address.startswith("unix://") else list(SOCKETS)
