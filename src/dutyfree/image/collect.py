"""Garbage by choice: images that nobody named and nobody uses go when the store is too large, or they too old.

What a person named stays, and so does what is in use, whatever the limits say. Snapshots and what was resolved by its
path can be made again: those go, least recently used first. Layers go with the last image that has them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import Misuse
from dutyfree.image.images import Images, Manifest

SETTING = "DUTYFREE_STORE_BYTES"

_SIZE = re.compile(r"([0-9]{1,18})([KMGT]?)")
_SCALE = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """Result of a collection: what was removed, and what is left."""

    removed: tuple[Manifest, ...]
    before_bytes: int
    after_bytes: int


def parse_size(text: str, field: str) -> int:
    """A size such as 500M; Misuse naming the field."""
    match = _SIZE.fullmatch(text.upper())
    if match is None:
        raise Misuse(f"{text[:50]!r} is no size: a number, and K, M, G or T", field=field)
    return int(match[1]) << _SCALE[match[2]]


def limit(environ: Mapping[str, str]) -> int | None:
    """Bytes that the store may keep, by its setting; None: no limit."""
    text = environ.get(SETTING)
    return parse_size(text, SETTING) if text else None


def stored_bytes(images: Images) -> int:
    """File content in all layers."""
    return sum(layer.size_bytes for layer in images.layers.all())


def collect(
    images: Images, *, keep_bytes: int | None = None, older_than_s: float | None = None, spare: str | None = None
) -> Collected:
    """Remove what is garbage anyway, then what is too old, then as much as is too much. `spare` is a key that stays."""
    before = stored_bytes(images)
    images.sweep()
    removed = []
    now = time.time()
    for used_s, manifest in _idle(images, spare):
        old = older_than_s is not None and now - used_s > older_than_s
        large = keep_bytes is not None and stored_bytes(images) > keep_bytes
        if (old or large) and _remove(images, manifest):
            removed.append(manifest)
    return Collected(removed=tuple(removed), before_bytes=before, after_bytes=stored_bytes(images))


def _idle(images: Images, spare: str | None) -> list[tuple[float, Manifest]]:
    """Images that nobody named, least recently used first."""
    named = {key for name, key in images.names.all().items() if not name.startswith(SNAPSHOT_PREFIX)}
    found = []
    for manifest in images.manifests():
        used_s = images.used_s(manifest.key)
        if manifest.key not in named and manifest.key != spare and not manifest.temporary and used_s is not None:
            found.append((used_s, manifest))
    return sorted(found, key=lambda item: item[0])


def _remove(images: Images, manifest: Manifest) -> bool:
    if not images.retire(manifest.key, only_if_idle=True):
        return False
    if manifest.kind == "snapshot":
        images.names.drop(manifest.source, only=manifest.key)
    return True
