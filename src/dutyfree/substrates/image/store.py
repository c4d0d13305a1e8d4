"""Images on disk, and who may delete them when.

    <root>/images/<key>/image.json  what an image is: its layers, and what commands start with
    <root>/layers/<key>             see `layer`
    <root>/names, <root>/paths      see `names`

An image appears by one rename and is never changed afterwards, so a crash leaves either all of it or a leftover that
the next sweep deletes. Whoever resolves an image holds a shared flock on its directory until `Store.close` or the
process's death; removal renames first, and deletes only what nobody holds. An image keeps its layers, also one that was
removed and is still in use: that is the reference count, and a killed process cannot get it wrong. A snapshot is an
image that is called `snapshot:<key>`. Knows nothing of what a layer contains.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates.image.collect import collect, limit
from dutyfree.substrates.image.layer import Layers
from dutyfree.substrates.image.names import Names
from dutyfree.substrates.image.place import Building, delete, locate, scan, try_lock
from dutyfree.substrates.image.stack import shorten

MAX_LAYERS = 60
"""Of one image: what the native spawner mounts."""

_SNAPSHOT_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What is known of a stored image; kept as `image.json`."""

    key: str
    kind: str
    """host · archive · directory · bench · oci · snapshot: how it was made."""
    made_s: float
    """Unix time at which it was complete."""
    size_bytes: int
    """Bytes of file content, in all layers."""
    source: str
    """Where it came from, for people."""
    layers: tuple[str, ...] = ()
    """Uppermost first: keys of layers here, or absolute paths of directories that are used where they are."""
    binds: tuple[tuple[str, str], ...] = ()
    """Of a snapshot over `host`: directories of this machine, and where they are inside."""
    recipe: str = ""
    """Key of what was asked for, where that differs from what came out (`bench`)."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    """What the image would start as a service, its arguments included; nothing starts it here unless asked to."""
    temporary: bool = False
    """A snapshot that goes with the store that saved it."""
    notes: tuple[str, ...] = ()
    """What was left out or changed on the way in, for people."""


class Store(Names):
    """The images below one directory. Safe for many threads and processes at once."""

    def __init__(self, root: Path, *, limit_bytes: int | None = None) -> None:
        super().__init__(root)
        self.limit_bytes = limit_bytes
        """What nobody named and nobody uses goes, when there is more than this."""
        self.layers = Layers(self)
        self.memo: dict[str, object] = {}
        """What was resolved already; `image.resolve` owns what is in it."""
        self._held: dict[str, int] = {}
        self._temporary: dict[str, int] = {}
        self._users: dict[str, int] = {}
        self._guard = threading.Lock()
        self._manifests: dict[tuple[int, int], Manifest | None] = {}
        self._swept = False

    @classmethod
    def default(cls) -> Store:
        """The store of this user on this machine. Touches nothing."""
        return cls(locate(os.environ, os.geteuid()), limit_bytes=limit(os.environ))

    def close(self) -> None:
        """Give up every image held, and remove the temporary snapshots saved here."""
        for key in tuple(self._temporary):
            self.remove_snapshot(key)
        with self._guard:
            self.memo.clear()
            while self._held:
                os.close(self._held.popitem()[1])
        self.layers.close()

    # -- images

    def directory(self, key: str) -> Path:
        """Where the image with that key is, or would be."""
        return self.root / "images" / key

    def layer_paths(self, manifest: Manifest) -> tuple[Path, ...]:
        """The directories an image is mounted from, uppermost first."""
        return tuple(map(self.layers.path, manifest.layers))

    def manifest(self, key: str) -> Manifest | None:
        """What is known of the image with that key; None: there is no such image."""
        return self._read(self.directory(key))

    def manifests(self) -> list[Manifest]:
        """Every image here, oldest first."""
        found = [self._read(Path(entry.path)) for entry in scan(self.root / "images")]
        return sorted((m for m in found if m is not None), key=lambda m: m.made_s)

    def _read(self, directory: Path) -> Manifest | None:
        """What `image.json` says; read once, since it never changes. None: it is not there, or of an earlier form."""
        try:
            status = os.stat(directory / "image.json")
            sign = status.st_ino, status.st_mtime_ns
            if sign not in self._manifests:
                self._manifests[sign] = _parse((directory / "image.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self._manifests[sign]

    def used_s(self, key: str) -> float | None:
        """Unix time at which an image was last resolved, by any process; None: there is no such image."""
        try:
            return self.directory(key).stat().st_mtime
        except FileNotFoundError:
            return None

    def hold(self, key: str) -> bool:
        """Keep the image with that key from being deleted until `close`. False: it is gone already."""
        with self._guard:
            if key in self._held and self._is_current(key, self._held[key]):
                return True
            try:
                fd = os.open(self.directory(key), os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return False
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                current = self._is_current(key, fd)
            except BlockingIOError:
                current = False
            if not current:
                os.close(fd)
                return False
            self._keep(key, fd)
            with contextlib.suppress(PermissionError):
                os.utime(fd)  # when it was last used, for the collector
            return True

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
        if not self.directory(key).exists():
            self._let_go(key)
            self.sweep()

    def _let_go(self, key: str) -> None:
        """Stop holding a removed image, if all its users said that they have ended."""
        with self._guard:
            if self._users.get(key) == 0:
                del self._users[key]
                if (fd := self._held.pop(key, None)) is not None:
                    os.close(fd)

    def _keep(self, key: str, fd: int) -> None:
        if (old := self._held.pop(key, None)) is not None:
            os.close(old)
        self._held[key] = fd

    def _is_current(self, key: str, fd: int) -> bool:
        try:
            there = self.directory(key).stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))

    def publish(self, building: Building, manifest: Manifest, *, durable: bool = True) -> Manifest:
        """Make what was built an image of one layer. If there is one with that key already, that one stays.

        durable: on disk before it is visible, so that not even a power cut leaves half of it.
        """
        layer = self.layers.publish(building, key=manifest.key, durable=durable, source=manifest.source)
        try:
            return self.save(replace(manifest, layers=(layer.key,)), durable=durable)
        finally:
            self.layers.release(layer.key)

    def save(self, manifest: Manifest, *, name: str | None = None, durable: bool = True) -> Manifest:
        """Make a stack of layers that we hold an image, and perhaps give it a name with the same breath."""
        self.prepare()
        with self.locked():
            self._save(manifest, durable=durable)
            if name is not None:
                self.point(name, manifest.key)
        self._tidy(manifest.key)
        return manifest

    def _tidy(self, spare: str) -> None:
        if self.limit_bytes is not None:
            collect(self, keep_bytes=self.limit_bytes, spare=spare)

    def _save(self, manifest: Manifest, *, durable: bool) -> None:
        for key in manifest.layers:
            if not self.layers.path(key).exists():
                raise Unavailable(
                    f"layer {key[:12]} of {manifest.source} was removed meanwhile; ask again", stage="image"
                )
        fresh = self.fresh()
        fresh.mkdir(mode=0o711)
        with (fresh / "image.json").open("w") as file:
            file.write(json.dumps(asdict(manifest), indent=1, default=dict) + "\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())
        # Fails on a directory that is not empty, which is what an image that came first is.
        try:
            fresh.rename(self.directory(manifest.key))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            delete(fresh)

    # -- layers and snapshots

    @contextlib.contextmanager
    def building(self) -> Iterator[Building]:
        """As in `Place`; the first of a process sweeps what dead ones left."""
        if not self._swept:
            self._swept = True
            self.sweep()
        with super().building() as building:
            yield building

    def draft_layer(self) -> AbstractContextManager[Building]:
        """A directory whose empty `rootfs` is to be filled; deleted at the end unless `publish_layer` took it."""
        return self.building()

    def publish_layer(
        self, draft: Building, *, key: str | None = None, hashed: bool = True, durable: bool = True
    ) -> str:
        """Make what is in the draft a layer; its key. Ours until an image that names it is saved, or `close`.

        The content is kept as it is: owners, whiteouts, opaque marks. See `Layers.publish`; for a layer that lives
        shortly `hashed=False, durable=False` costs a rename and a stat per file.
        """
        return self.layers.publish(draft, key=key, hashed=hashed, durable=durable).key

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
        name = SNAPSHOT_PREFIX + key
        layers = shorten(self, layers, MAX_LAYERS)
        manifest = Manifest(
            key=_snapshot_key(name, layers, temporary=temporary),
            kind="snapshot",
            made_s=time.time(),
            size_bytes=sum(layer.size_bytes for layer in map(self.layers.get, layers) if layer is not None),
            source=name,
            layers=layers,
            binds=tuple((os.fspath(source), target) for source, target in binds),
            env=dict(env or {}),
            cwd=cwd,
            user=user,
            temporary=temporary,
        )
        self.prepare()
        with self.locked():
            there = self.named(name)
            if there is not None and (found := self.manifest(there)) is not None:
                return found
            self._save(manifest, durable=not temporary)
            self.point(name, manifest.key)
            if temporary:
                fd = os.open(self.directory(manifest.key), os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(fd, fcntl.LOCK_SH)
                with self._guard:
                    self._temporary[key] = fd
        for layer in layers:
            self.layers.release(layer)
        if not temporary:
            self._tidy(manifest.key)
        return manifest

    def remove_snapshot(self, key: str) -> None:
        """Take a snapshot from view. Sandboxes that started from it keep it until they end. Calling it twice is fine."""
        check_snapshot(key)
        name = SNAPSHOT_PREFIX + key
        with self._guard:
            self.memo.pop(name, None)
            if (fd := self._temporary.pop(key, None)) is not None:
                os.close(fd)
        if (image := self.named(name)) is not None:
            self.drop_name(name, only=image)
            self._let_go(image)
            self.retire(image)

    # -- removal

    def retire(self, key: str, *, only_if_idle: bool = False) -> bool:
        """Take an image away from new users; False if somebody still uses it.

        It is then deleted, with the layers only it has, by the first sweep after the last user ended; with
        `only_if_idle`, it stays as it is.
        """
        with self.locked():
            try:
                fd = os.open(self.directory(key), os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return True
            try:
                idle = try_lock(fd)
                if idle or not only_if_idle:
                    self.discard(self.directory(key))
            finally:
                os.close(fd)
        self.sweep()
        return idle

    def sweep(self) -> None:
        """Delete what dead processes left, what was removed, and what nothing refers to; nothing that is in use."""
        if not self.root.exists():
            return
        with self.locked():
            self._discard_abandoned()
        super().sweep()
        # Removed images are gone now, so the layers only they had can go too.
        with self.locked():
            self.layers.discard_unused(self._used())
        super().sweep()

    def _discard_abandoned(self) -> None:
        """Names and snapshots that lost each other, temporary ones whose saver is dead, images of an earlier form."""
        for name, key in self.names().items():
            if name.startswith(SNAPSHOT_PREFIX) and not self.directory(key).exists():
                (self.root / "names" / name).unlink(missing_ok=True)
        named = set(self.names().values())
        for entry in scan(self.root / "images"):
            manifest = self._read(Path(entry.path))
            if manifest is not None and (
                manifest.kind != "snapshot" or (manifest.key in named and not manifest.temporary)
            ):
                continue
            fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if try_lock(fd):
                    if manifest is not None and self.named(manifest.source) == manifest.key:
                        (self.root / "names" / manifest.source).unlink()
                    self.discard(Path(entry.path))
            finally:
                os.close(fd)

    def _used(self) -> set[str]:
        """The layers of every image, also of those that were removed and still have users."""
        found = (*scan(self.root / "images"), *scan(self.root / "trash"))
        manifests = (self._read(Path(entry.path)) for entry in found)
        return {key for manifest in manifests if manifest is not None for key in manifest.layers}


def check_snapshot(key: str) -> None:
    """Refuse what cannot be the key of a snapshot."""
    if not _SNAPSHOT_KEY.fullmatch(key):
        raise Misuse(f"{key[:200]!r} is no snapshot key: letters, digits, and . _ - after the first", field="key")


def _snapshot_key(name: str, layers: Sequence[str], *, temporary: bool) -> str:
    return hashlib.sha256("\0".join(("snapshot-1", name, str(temporary), *layers)).encode()).hexdigest()


def _parse(text: bytes) -> Manifest | None:
    content = json.loads(text)
    if not content.get("layers"):
        return None
    content["layers"] = tuple(content["layers"])
    content["binds"] = tuple((source, target) for source, target in content["binds"])
    content["notes"] = tuple(content["notes"])
    content["entrypoint"] = tuple(content["entrypoint"])
    return Manifest(**content)
