"""Takes an image out of a running engine's storage: its description, and the archive only where layers are missing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from dutyfree.core.checkout import make
from dutyfree.core.errors import DriverError, Misuse, Unavailable
from dutyfree.image.oci import layout
from dutyfree.image.oci.document import configuration, fits
from dutyfree.image.oci.source import Blob, Source
from dutyfree.substrates.container.engine_http import Http, ask


def find_socket(kind: str, environ: Mapping[str, str]) -> str:
    """Find the socket of an engine of that kind; Unavailable if none answers."""
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


@contextlib.contextmanager
def stored_image(
    socket: str, driver: str, name: str, archive: Path, *, reference: str | None, platform: str
) -> Iterator[Source]:
    """The image that the engine at a socket calls `name`; saved to `archive` once a layer of it is asked for. Blocks."""
    with contextlib.ExitStack() as opened:
        found: list[Source] = []

        def save() -> Source:
            if not found:
                asyncio.run(_save(socket, driver, name, archive))
                shelf = opened.enter_context(layout.opened(archive))
                found.append(layout.find(shelf, name=f"{driver}:{name}", reference=reference, platform=platform))
            return found[0]

        def fetch(blobs: Sequence[Blob]) -> None:
            if blobs and configuration(save().config).diff_ids != ids:
                raise Unavailable(f"{driver} has another image {name!r} now; ask again", driver=driver, step="image")

        def layer(index: int) -> Blob:
            def opened_layer() -> AbstractContextManager[IO[bytes]]:
                return save().layers[index].open()

            return Blob(digest="", open=opened_layer)

        text = None if reference else asyncio.run(_described(socket, driver, name, platform))
        if text is None:
            yield save()
        else:
            ids = configuration(text).diff_ids
            layers = tuple(map(layer, range(len(ids))))
            yield Source(name=f"{driver}:{name}", config=text, layers=layers, fetch=fetch)


async def _described(socket: str, driver: str, name: str, platform: str) -> bytes | None:
    """An image's configuration, as far as it matters here; None: the engine does not tell enough, or of another one."""
    reply = await Http(socket, driver).call("GET", f"/images/{name}/json")
    said = reply.json() if reply.ok else None
    if not isinstance(said, dict) or not isinstance(said.get("RootFS"), dict) or not said["RootFS"].get("Layers"):
        return None
    document = {
        "architecture": said.get("Architecture"),
        "os": said.get("Os"),
        "variant": said.get("Variant"),
        "config": said.get("Config"),
        "rootfs": {"type": "layers", "diff_ids": said["RootFS"]["Layers"]},
    }
    text = json.dumps(document).encode()
    return text if fits(configuration(text).platform, platform) else None


async def _save(path: str, driver: str, name: str, target: Path) -> None:
    http = Http(path, driver)
    with target.open("xb") as file:
        reply = await http.download(f"/images/{name}/get", file)
    if reply.status == 404:
        raise Misuse(f"there is no image {name[:200]!r}: {reply.message}", field="path", driver=driver)
    if not reply.ok:
        raise DriverError(f"cannot save image {name[:200]!r}: {reply.message}", driver=driver, step="image")
