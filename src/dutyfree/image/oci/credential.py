"""Names and passwords for registries: given, or as `docker login` and `podman login` left them. Writes nothing."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HELPER = re.compile(r"[A-Za-z0-9_-]+")
_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Credential:
    """A login to a registry."""

    user: str
    password: str = field(repr=False)


def look_up(host: str, environ: Mapping[str, str]) -> Credential | None:
    """Look up the user's own login to a registry; None: there is none."""
    for path in _places(environ):
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and (found := _find(document, host)) is not None:
            return found
    return None


def _places(environ: Mapping[str, str]) -> list[Path]:
    home = Path(environ.get("HOME", "/"))
    docker = Path(environ["DOCKER_CONFIG"]) if environ.get("DOCKER_CONFIG") else home / ".docker"
    places = [docker / "config.json", home / ".config/containers/auth.json"]
    if environ.get("REGISTRY_AUTH_FILE"):
        places.insert(0, Path(environ["REGISTRY_AUTH_FILE"]))
    if environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(environ["XDG_RUNTIME_DIR"]) / "containers/auth.json")
    return places


def _find(document: dict[str, Any], host: str) -> Credential | None:
    names = (host, f"https://{host}", f"https://{host}/v1/", *((_HUB_KEY,) if host == "docker.io" else ()))
    helpers = document.get("credHelpers")
    helper = helpers.get(host) if isinstance(helpers, dict) else None
    helper = helper or document.get("credsStore")
    auths = document.get("auths")
    for name in names:
        entry = auths.get(name) if isinstance(auths, dict) else None
        if isinstance(entry, dict) and (found := _decode(entry.get("auth"))) is not None:
            return found
        if isinstance(helper, str) and _HELPER.fullmatch(helper) and (found := _ask(helper, name)) is not None:
            return found
    return None


def _decode(auth: object) -> Credential | None:
    try:
        user, sign, password = base64.b64decode(str(auth or ""), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return Credential(user=user, password=password.rstrip("\0")) if sign else None


def _ask(helper: str, name: str) -> Credential | None:
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=name.encode(),
            capture_output=True,
            check=True,
            env=os.environ,
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None
    if not isinstance(said, dict) or "Secret" not in said:
        return None
    return Credential(user=str(said.get("Username", "")), password=str(said["Secret"]))
