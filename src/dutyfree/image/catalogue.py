"""List images, and remove them without disturbing running sandboxes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from dutyfree.core.errors import Misuse
from dutyfree.image.names import ALIAS
from dutyfree.image.store import Manifest, Store

_SHORTEST_KEY = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One name, or one image that has none."""

    name: str
    """Empty: it was resolved by its path only, or is a host image."""
    key: str
    kind: str
    size_bytes: int
    made_s: float
    source: str
    layers: int = 0
    entrypoint: tuple[str, ...] = ()
    """What a container image would start by itself; here nothing does."""


def catalogue(store: Store) -> list[Row]:
    """Every name, then every image without one."""
    manifests = {manifest.key: manifest for manifest in store.images.manifests()}
    host = next((manifest for manifest in reversed(manifests.values()) if manifest.kind == "host"), None)
    rows, named = [], set()
    for name, key in store.names.all().items():
        manifest = host if key == ALIAS else manifests.get(key)
        if manifest is not None:
            rows.append(_row(name, manifest))
            named.add(key)
        elif key == ALIAS:
            rows.append(Row(name=name, key="", kind="host", size_bytes=0, made_s=0.0, source="host"))
    for key, manifest in manifests.items():
        if key not in named:
            rows.append(_row("host" if manifest is host else "", manifest))
    return rows


def remove(store: Store, name: str) -> bool:
    """Remove a name (or an image by its key's beginning, or by the path it came from) and the image nobody else names.

    False: it is still in use, and is deleted once its last user ended. Raises Misuse for what is not here.
    """
    if (key := store.named(name)) is not None:
        store.names.drop(name)
        return True if key == ALIAS else release(store, key)
    matches = [row for row in catalogue(store) if _is_meant(row, name)]
    if not matches:
        raise _unknown(store, name)
    keys = {row.key for row in matches}
    if len(keys) > 1:
        raise Misuse(f"{name!r} means {len(keys)} images: use more of the key", field="name")
    if taken := [row.name for row in matches if row.name not in ("", "host")]:
        raise Misuse(f"that image is named: remove {', '.join(taken)}", field="name")
    return release(store, keys.pop())


def release(store: Store, key: str) -> bool:
    """Delete an image unless a name stands for it. False: somebody still uses it, so it goes later."""
    return True if key in store.names.all().values() else store.images.retire(key)


def _is_meant(row: Row, name: str) -> bool:
    by_key = len(name) >= _SHORTEST_KEY and row.key.startswith(name)
    return by_key or name == row.name or (not row.name and name == row.source)


def _row(name: str, manifest: Manifest) -> Row:
    return Row(
        name=name,
        key=manifest.key,
        kind=manifest.kind,
        size_bytes=manifest.size_bytes,
        made_s=manifest.made_s,
        source=manifest.source,
        layers=len(manifest.layers),
        entrypoint=manifest.entrypoint,
    )


def _unknown(store: Store, name: str) -> Misuse:
    names = [row.name or row.key[:12] for row in catalogue(store)]
    close = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    known = f" Here are: {', '.join(names)}" if names else " There are none"
    return Misuse(f"there is no image {name!r} to remove.{guess}{known}", field="name")
