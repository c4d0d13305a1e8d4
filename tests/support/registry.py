"""A real registry on loopback for tests, with a store of its own, and a way to put images into it.

with registry() as host: …                   `127.0.0.1:PORT`; needs no login
with registry(login=("me", "secret")) as host: …
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.daemons import Missing, detached, end, wait_for
from support.image import digest

PROGRAM = "docker-registry"

_SALT = "$2y$05$abcdefghijklmnopqrstuu"


@contextmanager
def registry(*, login: tuple[str, str] | None = None) -> Iterator[str]:
    """The address of a registry of one's own. `Missing` names the command that installs it."""
    if not shutil.which(PROGRAM):
        raise Missing(f"{PROGRAM} is not installed; enable: apt-get install -y {PROGRAM}")
    home = Path(tempfile.mkdtemp(prefix=f"dutyfree-registry-{os.getpid()}-"))
    try:
        host = f"127.0.0.1:{_free_port()}"
        (home / "config.yml").write_text(json.dumps(_config(home, host, login)))
        pid = detached([PROGRAM, "serve", str(home / "config.yml")], home / "log", env={"PATH": os.environ["PATH"]})
        try:
            wait_for(lambda: _answers(host), what=PROGRAM, log=home / "log")
            yield host
        finally:
            end(pid)
    finally:
        shutil.rmtree(home)


def push(host: str, repository: str, tag: str, layout: Path, login: tuple[str, str] | None = None) -> str:
    """Put every blob of a layout, then its manifests and indexes; the tag is the last of its index. Its digest."""
    with httpx.Client(base_url=f"http://{host}/v2/{repository}/", auth=login) as client:
        texts: list[tuple[str, bytes]] = []
        for blob in (layout / "blobs/sha256").iterdir():
            content = blob.read_bytes()
            kind = _media_type(content)
            if kind is None:
                begun = _done(client.post("blobs/uploads/"))
                place = httpx.URL(begun.headers["Location"]).copy_merge_params({"digest": f"sha256:{blob.name}"})
                _done(client.put(place, content=content))
            else:
                texts.append((kind, content))
        # Indexes name manifests, so these have to be there first.
        for kind, content in sorted(texts, key=lambda item: "index" in item[0]):
            name = _done(_put(client, content, kind)).headers["Docker-Content-Digest"]
        chosen = json.loads((layout / "index.json").read_text())["manifests"][-1]["digest"]
        content = (layout / "blobs/sha256" / chosen.removeprefix("sha256:")).read_bytes()
        name = _done(_put(client, content, _media_type(content) or "", tag)).headers["Docker-Content-Digest"]
        return str(name)


def _put(client: httpx.Client, content: bytes, kind: str, tag: str | None = None) -> httpx.Response:
    return client.put(f"manifests/{tag or digest(content)}", content=content, headers={"Content-Type": kind})


def _done(reply: httpx.Response) -> httpx.Response:
    if not reply.is_success:
        raise RuntimeError(f"the registry refuses: {reply.status_code} {reply.text}")
    return reply


def _media_type(content: bytes) -> str | None:
    """Of a manifest or an index; None: it is a blob like any other."""
    if not content.startswith(b"{") or b'"schemaVersion"' not in content:
        return None
    kind = json.loads(content).get("mediaType")
    return str(kind) if kind else None


def _config(home: Path, host: str, login: tuple[str, str] | None) -> dict[str, Any]:
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(home / "data")}},
        "http": {"addr": host},
    }
    if login is not None:
        script = "print crypt($ARGV[0], $ARGV[1])"
        done = subprocess.run(["perl", "-e", script, login[1], _SALT], check=True, capture_output=True, text=True)
        (home / "htpasswd").write_text(f"{login[0]}:{done.stdout}\n")
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(home / "htpasswd")}}
    return config


def _answers(host: str) -> bool:
    try:
        return httpx.get(f"http://{host}/v2/").status_code in (200, 401)
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
