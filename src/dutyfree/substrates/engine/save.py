"""Takes an image out of a running engine's storage, as the archive that `docker save` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dutyfree.core.checkout import make
from dutyfree.core.errors import DriverError, Misuse, Unavailable
from dutyfree.substrates.engine.http import Http
from dutyfree.substrates.engine.options import ask


def find_socket(kind: str, environ: Mapping[str, str]) -> str:
    """Where an engine of that kind answers; Unavailable if none does."""
    runtime = environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    known: dict[str, tuple[str, ...]] = {
        "docker": ("/var/run/docker.sock", "/run/dutyfree/docker/docker.sock"),
        "podman": ("/run/podman/podman.sock", f"{runtime}/podman/podman.sock"),
    }
    places = known[kind]
    host = environ.get("DOCKER_HOST", "") if kind == "docker" else environ.get("CONTAINER_HOST", "")
    if host.startswith("unix://"):
        places = (host.removeprefix("unix://"),)
    for place in places:
        if isinstance(ask(place, "/version"), dict):
            return place
    enable = make("substrates", f"apt-get install -y {'podman' if kind == 'podman' else 'docker.io'}")
    raise Unavailable(f"no engine answers at {' or '.join(places)}", enable=enable, driver=kind)


async def save(path: str, driver: str, name: str, target: Path) -> None:
    """Write the image that the engine at a socket calls `name` to a file."""
    http = Http(path, driver)
    with target.open("xb") as file:
        reply = await http.download(f"/images/{name}/get", file)
    if reply.status == 404:
        raise Misuse(f"there is no image {name[:200]!r}: {reply.message}", field="path", driver=driver)
    if not reply.ok:
        raise DriverError(f"cannot save image {name[:200]!r}: {reply.message}", driver=driver, step="image")
