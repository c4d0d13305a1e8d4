"""The JSON of OCI and Docker images: indexes, manifests and configurations. Hostile input: every field is checked."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dutyfree.core.errors import Misuse

MAX_DOCUMENT_BYTES = 8 << 20
MAX_LAYERS = 512
INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """Reference from one document to another: its digest, length and type."""

    digest: str
    size: int
    media_type: str
    platform: str = ""
    """As in ``linux/amd64`` or ``linux/arm64/v8``; empty: not said."""
    name: str = ""
    """The reference it has in a layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Defaults that an image's configuration gives."""

    diff_ids: tuple[str, ...]
    """Digests of the plain layers, lowest first."""
    platform: str
    env: dict[str, str]
    cwd: str | None
    user: str | None
    entrypoint: tuple[str, ...]
    """ENTRYPOINT and CMD, as one."""


def wrong(what: str) -> Misuse:
    """The image is not one, or not one we can have."""
    return Misuse(what, field="image")


def parse(text: bytes, what: str) -> dict[str, Any]:
    """A document that is an object."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"{what} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise wrong(f"{what} is no JSON object")
    return document


def check_digest(digest: object, what: str) -> str:
    """A digest of a kind we can verify."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise wrong(f"{what} has no sha256 or sha512 digest: {str(digest)[:100]!r}")
    return digest


def descriptors(document: dict[str, Any], field: str) -> list[Descriptor]:
    """The list of descriptors in a field."""
    found = document.get(field)
    if not isinstance(found, list) or len(found) > MAX_LAYERS:
        raise wrong(f"the image's {field!r} is no list of at most {MAX_LAYERS}")
    return [descriptor(item, f"{field}[{index}]") for index, item in enumerate(found)]


def descriptor(item: object, what: str) -> Descriptor:
    """One descriptor."""
    if not isinstance(item, dict):
        raise wrong(f"{what} is no descriptor")
    size = item.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise wrong(f"{what} has no size")
    notes = item.get("annotations")
    name = notes.get("org.opencontainers.image.ref.name", "") if isinstance(notes, dict) else ""
    full = notes.get("io.containerd.image.name", "") if isinstance(notes, dict) else ""
    return Descriptor(
        digest=check_digest(item.get("digest"), what),
        size=size,
        media_type=str(item.get("mediaType", "")),
        platform=_platform(item.get("platform")),
        name=str(full or name),
    )


def choose(found: Sequence[Descriptor], wanted: str) -> Descriptor:
    """The entry of an index that fits a platform; one that does not say fits if it is alone."""
    fitting = [item for item in found if fits(item.platform, wanted)]
    if not fitting:
        silent = [item for item in found if not item.platform]
        if len(silent) == 1:
            return silent[0]
        there = sorted({item.platform for item in found if item.platform and not item.platform.startswith("unknown")})
        raise wrong(f"the image has no {wanted}; it has {', '.join(there) or 'nothing'} (see --platform)")
    return fitting[0]


def fits(has: str, wanted: str) -> bool:
    """Whether a platform is the one wanted; a variant counts only if both say one."""
    parts = list(zip(has.split("/"), wanted.split("/"), strict=False))
    return len(parts) >= 2 and all(ours == theirs for ours, theirs in parts)


def this_platform() -> str:
    """Platform of this machine, in the words that images use."""
    machine = platform.machine()
    return f"linux/{_MACHINES.get(machine, machine)}"


def configuration(text: bytes) -> Configuration:
    """Parse an image's configuration; Misuse if it is not one."""
    document = parse(text, "the image's configuration")
    rootfs = document.get("rootfs")
    ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(ids, list) or not 0 < len(ids) <= MAX_LAYERS:
        raise wrong(f"the image's configuration lists no layers, or more than {MAX_LAYERS}")
    inner = document.get("config")
    config: dict[str, Any] = inner if isinstance(inner, dict) else {}
    cwd = _text(config.get("WorkingDir"))
    return Configuration(
        diff_ids=tuple(check_digest(item, f"diff_ids[{index}]") for index, item in enumerate(ids)),
        platform=_platform(document),
        env=_env(config.get("Env")),
        cwd=None if cwd in (None, "/") else "/" + str(cwd).strip("/"),
        user=_text(config.get("User")),
        entrypoint=(*_words(config.get("Entrypoint")), *_words(config.get("Cmd"))),
    )


def _platform(item: object) -> str:
    if not isinstance(item, dict) or not item.get("os") or not item.get("architecture"):
        return ""
    return "/".join(str(item[name]) for name in ("os", "architecture", "variant") if item.get(name))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value and "\0" not in value else None


def _words(value: object) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def _env(value: object) -> dict[str, str]:
    pairs = (word.partition("=") for word in _words(value) if "\0" not in word)
    return {name: text for name, sign, text in pairs if name and sign}
