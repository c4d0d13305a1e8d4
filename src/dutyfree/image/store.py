"""The store: images, the layers they are stacked from, their names, and snapshots, which are images too.

    <root>/images, <root>/layers    see `images` and `layer`
    <root>/names, <root>/paths      see `names`
    <root>/building, <root>/trash   see `root`

A snapshot is an image that is called `snapshot:<key>`: the layers of the image it was taken on, and one more.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import Misuse
from dutyfree.core.settings import environment
from dutyfree.image.collect import collect, limit
from dutyfree.image.images import Images, Manifest
from dutyfree.image.layer import Layers
from dutyfree.image.names import ALIAS, Names
from dutyfree.image.root import Building, StoreRoot, delete, locate
from dutyfree.image.stack import shorten

__all__ = ["ALIAS", "MAX_LAYERS", "Building", "Manifest", "Store", "check_snapshot", "delete", "locate"]

MAX_LAYERS = 60
"""Of one image: as many as are mounted over each other."""

_SNAPSHOT_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Store:
    """Everything below one directory. Safe for many threads and processes at once."""

    def __init__(self, root: Path, *, limit_bytes: int | None = None) -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        """What nobody named and nobody uses goes, when there is more than this."""
        self._root = StoreRoot(root)
        self.names = Names(self._root)
        self.layers = Layers(self._root)
        self.images = Images(self._root, self.layers, self.names)
        self.memo: dict[str, object] = {}
        """What was resolved already; `image.resolve` owns what is in it."""
        self._guard = threading.Lock()
        self._temporary: dict[str, int] = {}
        self._users: dict[str, int] = {}
        self._ours: Counter[str] = Counter()
        """Layers that `publish_layer` gave and no snapshot has yet."""

    @classmethod
    def default(cls) -> Store:
        """The store of this user on this machine. Touches nothing."""
        return cls(locate(given := environment(), os.geteuid()), limit_bytes=limit(given))

    def close(self) -> None:
        """Give up every image held, and remove the temporary snapshots saved here."""
        for key in tuple(self._temporary):
            self.remove_snapshot(key)
        with self._guard:
            self.memo.clear()
            self._ours.clear()
        self.images.close()
        self.layers.close()

    def prepare(self) -> None:
        """Make what is missing of the root."""
        self._root.prepare()

    def exclusive(self, what: str) -> AbstractContextManager[None]:
        """One holder per `what` at a time, in all processes."""
        return self._root.exclusive(what)

    def named(self, name: str) -> str | None:
        """The key (or `ALIAS`) that a name stands for; None: no such name."""
        return self.names.named(name)

    def manifest(self, key: str) -> Manifest | None:
        """Read the description of the image with that key; None: there is no such image."""
        return self.images.manifest(key)

    def publish(self, draft: Building, manifest: Manifest, *, durable: bool = True) -> Manifest:
        """Make what was built an image of one layer. If there is one with that key already, that one stays.

        durable: on disk before it is visible, so that not even a power cut leaves half of it.
        """
        layer = self.layers.publish(draft, key=manifest.key, durable=durable, source=manifest.source)
        try:
            return self.save(replace(manifest, layers=(layer.key,)), durable=durable)
        finally:
            self.layers.release(layer.key)

    def save(self, manifest: Manifest, *, durable: bool = True) -> Manifest:
        """Make a stack of layers that we hold an image; then the store is as small as it must be."""
        self.images.save(manifest, durable=durable)
        self._tidy(manifest.key)
        return manifest

    def _tidy(self, spare: str) -> None:
        if self.limit_bytes is not None:
            collect(self.images, keep_bytes=self.limit_bytes, spare=spare)

    def borrow(self, key: str) -> None:
        """Say that a sandbox runs on an image that we hold; `give_back` when it has ended.

        Only for images that are removed while the store is open, which snapshots are: what was borrowed is let go when
        it was removed and its last user has ended, all else with `close`.
        """
        with self._guard:
            self._users[key] = self._users.get(key, 0) + 1

    def give_back(self, key: str) -> None:
        """One user less."""
        with self._guard:
            self._users[key] -= 1
        if not self.images.directory(key).exists():
            self._let_go(key)
            self.images.sweep()

    def _let_go(self, key: str) -> None:
        """Stop holding a removed image, if all its users said that they have ended."""
        with self._guard:
            unused = self._users.get(key) == 0
            if unused:
                del self._users[key]
        if unused:
            self.images.let_go(key)

    def draft_layer(self) -> AbstractContextManager[Building]:
        """A directory whose empty `rootfs` is to be filled; deleted at the end unless `publish_layer` took it."""
        return self.images.building()

    def publish_layer(
        self, draft: Building, *, key: str | None = None, hashed: bool = True, durable: bool = True
    ) -> str:
        """Make what is in the draft a layer; its key. Ours until an image that names it is saved, or `close`.

        The content is kept as it is: owners, whiteouts, opaque marks. See `Layers.publish`; for a layer that lives
        shortly `hashed=False, durable=False` costs a rename and a stat per file.
        """
        made = self.layers.publish(draft, key=key, hashed=hashed, durable=durable)
        with self._guard:
            self._ours[made.key] += 1
        return made.key

    def save_snapshot(
        self,
        key: str,
        layers: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        binds: Sequence[tuple[Path, str]] = (),
        temporary: bool = False,
    ) -> Manifest:
        """An image called `snapshot:<key>` of those layers, uppermost first. One that is there already is kept.

        temporary: it is removed by `close`, and by any sweeper once this process is dead.
        """
        check_snapshot(key)
        shorter = shorten(self.images, layers, MAX_LAYERS)
        try:
            manifest = self._save_snapshot(
                Manifest(
                    key=_snapshot_key(key, shorter, temporary=temporary),
                    kind="snapshot",
                    made_s=time.time(),
                    size_bytes=sum(layer.size_bytes for layer in map(self.layers.get, shorter) if layer is not None),
                    source=SNAPSHOT_PREFIX + key,
                    layers=shorter,
                    binds=tuple((os.fspath(source), target) for source, target in binds),
                    env=dict(env or {}),
                    cwd=cwd,
                    user=user,
                    temporary=temporary,
                )
            )
        finally:
            for layer in set(shorter) - set(layers):
                self.layers.release(layer)
            self._let_layers_go(layers)
        if not temporary:
            self._tidy(manifest.key)
        return manifest

    def _save_snapshot(self, manifest: Manifest) -> Manifest:
        name = manifest.source
        self._root.prepare()
        with self._root.locked():
            there = self.named(name)
            if there is not None and (found := self.images.whole(there)) is not None:
                return found
            self.images.write(manifest, durable=not manifest.temporary)
            self.names.point(name, manifest.key)
            if manifest.temporary:
                fd = os.open(self.images.directory(manifest.key), os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(fd, fcntl.LOCK_SH)
                with self._guard:
                    self._temporary[name.removeprefix(SNAPSHOT_PREFIX)] = fd
        return manifest

    def _let_layers_go(self, layers: Sequence[str]) -> None:
        """Those that `publish_layer` gave are the image's from now on, or nobody's."""
        for layer in layers:
            with self._guard:
                ours = self._ours[layer] > 0
                if ours:
                    self._ours[layer] -= 1
            if ours:
                self.layers.release(layer)

    def remove_snapshot(self, key: str) -> None:
        """Take a snapshot from view. Sandboxes that started from it keep it until they end. Calling it twice is fine."""
        check_snapshot(key)
        name = SNAPSHOT_PREFIX + key
        with self._guard:
            self.memo.pop(name, None)
            if (fd := self._temporary.pop(key, None)) is not None:
                os.close(fd)
        if (image := self.named(name)) is not None:
            self.names.drop(name, only=image)
            self._let_go(image)
            self.images.retire(image)


def check_snapshot(key: str) -> None:
    """Refuse what cannot be the key of a snapshot."""
    if not _SNAPSHOT_KEY.fullmatch(key):
        raise Misuse(f"{key[:200]!r} is no snapshot key: letters, digits, and . _ - after the first", field="key")


def _snapshot_key(key: str, layers: Sequence[str], *, temporary: bool) -> str:
    return hashlib.sha256("\0".join(("snapshot-1", key, str(temporary), *layers)).encode()).hexdigest()
