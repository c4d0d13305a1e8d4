"""Whether layers are still what they were when they became visible: every byte is read.

Nothing is changed but a mark on layers that are not, by which the next import that has them replaces them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass

from dutyfree.image.digest import measure
from dutyfree.image.layer import Layer
from dutyfree.image.root import scan
from dutyfree.image.store import Manifest, Store

_UNREADABLE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Of one layer."""

    layer: Layer
    intact: bool | None
    """None: its digest was not taken when it was made, so nobody can tell."""
    images: tuple[str, ...]
    """Keys of those that have it."""
    missing: bool = False
    """Images have it, and it is not there."""


def verify(store: Store, manifest: Manifest | None = None) -> Iterator[Verdict]:
    """Each layer of an image, or of all: those that are stored, and those that images say they have. Blocks between them."""
    manifests = store.images.manifests()
    if manifest is not None:
        keys = list(manifest.layers)
    else:
        there = {entry.name for entry in scan(store.root / "layers")}
        keys = sorted(there.union(*(other.layers for other in manifests)))
    for key in keys:
        users = tuple(other.key for other in manifests if key in other.layers)
        if (verdict := _verdict(store, key, users)) is not None:
            yield verdict


def _verdict(store: Store, key: str, users: tuple[str, ...]) -> Verdict | None:
    """None: there is nothing to compare, or nobody misses it."""
    unknown = Layer(key=key, made_s=0.0, size_bytes=0, entries=0, digest="")
    if not store.layers.path(key).exists():
        return Verdict(layer=unknown, intact=False, images=users, missing=True) if users else None
    if not store.layers.hold(key):
        return None
    try:
        layer = store.layers.get(key)
        intact = _intact(store, layer) if layer is not None else False
        if intact is False:
            store.layers.mark_damaged(key)
        return Verdict(layer=layer or unknown, intact=intact, images=users)
    finally:
        store.layers.release(key)


def _intact(store: Store, layer: Layer) -> bool | None:
    try:
        return measure(store.layers.path(layer.key)).digest == layer.digest if layer.digest else None
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return False
