"""Whether layers are still what they were when they became visible: every byte is read, nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dutyfree.image.digest import measure
from dutyfree.image.layer import Layer
from dutyfree.image.store import Manifest, Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Of one layer."""

    layer: Layer
    intact: bool | None
    """None: its digest was not taken when it was made, so nobody can tell."""
    images: tuple[str, ...]
    """Keys of those that have it."""


def verify(store: Store, manifest: Manifest | None = None) -> Iterator[Verdict]:
    """Each layer of an image, or of all. Blocks between them."""
    manifests = store.manifests()
    keys = manifest.layers if manifest is not None else sorted(layer.key for layer in store.layers.all())
    for key in keys:
        if not store.layers.hold(key):
            continue
        try:
            layer = store.layers.get(key)
            if layer is not None:
                users = tuple(other.key for other in manifests if key in other.layers)
                yield Verdict(layer=layer, intact=_intact(store, layer), images=users)
        finally:
            store.layers.release(key)


def _intact(store: Store, layer: Layer) -> bool | None:
    return measure(store.layers.path(layer.key)).digest == layer.digest if layer.digest else None
