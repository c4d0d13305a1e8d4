"""Images on disk, and who may delete them when.

    <root>/images/<key>/image.json  what an image is: its layers, and what commands start with

An image appears by one rename and is never changed afterwards, so a crash leaves either all of it or a leftover that
the next sweep deletes. Whoever resolves an image holds a shared flock on its directory until `close` or the process's
death; removal renames first, and deletes only what nobody holds. An image keeps its layers, also one that was removed
and is still in use: that is the reference count, and a killed process cannot get it wrong. Knows nothing of what a
layer contains.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from dutyfree.core import fault
from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import Unavailable
from dutyfree.image.layer import Layers
from dutyfree.image.names import Names
from dutyfree.image.root import Building, StoreRoot, delete, scan, try_lock


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Description of a stored image; kept as `image.json`."""

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


class Images:
    """The images below one root, without what makes snapshots of them."""

    def __init__(self, root: StoreRoot, layers: Layers, names: Names) -> None:
        self.root = root
        self.names = names
        self.layers = layers
        self._held: dict[str, int] = {}
        self._guard = threading.Lock()
        self._manifests: dict[tuple[int, int], Manifest | None] = {}
        self._swept = False

    def directory(self, key: str) -> Path:
        """Path of the image with that key, also if there is none."""
        return self.root.path / "images" / key

    def layer_paths(self, manifest: Manifest) -> tuple[Path, ...]:
        """The directories an image is mounted from, uppermost first."""
        return tuple(map(self.layers.path, manifest.layers))

    def manifest(self, key: str) -> Manifest | None:
        """Read the description of the image with that key; None: there is no such image."""
        return self._read(self.directory(key))

    def whole(self, key: str) -> Manifest | None:
        """The same, but None also where one of its layers is missing, or was found damaged: it must be made again."""
        manifest = self.manifest(key)
        return manifest if manifest is not None and all(map(self.layers.is_sound, manifest.layers)) else None

    def manifests(self) -> list[Manifest]:
        """Every image here, oldest first."""
        found = [self._read(Path(entry.path)) for entry in scan(self.root.path / "images")]
        return sorted((m for m in found if m is not None), key=lambda m: m.made_s)

    def _read(self, directory: Path) -> Manifest | None:
        """Read `image.json`, once, since it never changes. None: it is missing, damaged, or of an earlier form."""
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

    def let_go(self, key: str) -> None:
        """Stop holding an image."""
        with self._guard:
            if (fd := self._held.pop(key, None)) is not None:
                os.close(fd)

    def close(self) -> None:
        """Give up every image held."""
        with self._guard:
            while self._held:
                os.close(self._held.popitem()[1])

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

    def save(self, manifest: Manifest, *, durable: bool = True) -> None:
        """Make a stack of layers that we hold an image."""
        self.root.prepare()
        with self.root.locked():
            self.write(manifest, durable=durable)

    def write(self, manifest: Manifest, *, durable: bool) -> None:
        """The same, under the store's lock."""
        for key in manifest.layers:
            if not self.layers.path(key).exists():
                raise Unavailable(
                    f"layer {key[:12]} of {manifest.source} was removed meanwhile; ask again", step="image"
                )
        fresh = self.root.fresh()
        fresh.mkdir(mode=0o711)
        with (fresh / "image.json").open("w") as file:
            file.write(json.dumps(asdict(manifest), indent=1, default=dict) + "\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())
        # Fails on a directory that is not empty, which is what an image that came first is.
        try:
            fault.at("dutyfree.store.save", manifest.key)
            fresh.rename(self.directory(manifest.key))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            delete(fresh)

    @contextlib.contextmanager
    def building(self) -> Iterator[Building]:
        """A directory to build in, as the root's; the first of a process sweeps what dead ones left."""
        if not self._swept:
            self._swept = True
            self.sweep()
        with self.root.building() as building:
            yield building

    def retire(self, key: str, *, only_if_idle: bool = False) -> bool:
        """Take an image away from new users; False if somebody still uses it.

        It is then deleted, with the layers only it has, by the first sweep after the last user ended; with
        `only_if_idle`, it stays as it is.
        """
        with self.root.locked():
            try:
                fd = os.open(self.directory(key), os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return True
            try:
                idle = try_lock(fd)
                if idle or not only_if_idle:
                    fault.at("dutyfree.store.retire", key)
                    self.root.discard(self.directory(key))
            finally:
                os.close(fd)
        self.sweep()
        return idle

    def sweep(self) -> None:
        """Delete what dead processes left, what was removed, and what nothing refers to; nothing that is in use."""
        if not self.root.path.exists():
            return
        self.root.prepare()
        with self.root.locked():
            self._discard_abandoned()
        self.root.sweep()
        # Removed images are gone now, so the layers only they had can go too.
        with self.root.locked():
            self.layers.discard_unused(self._used())
        self.root.sweep()

    def _discard_abandoned(self) -> None:
        """Names and snapshots that lost each other, temporary ones whose saver is dead, images of an earlier form."""
        for name, key in self.names.all().items():
            if name.startswith(SNAPSHOT_PREFIX) and not self.directory(key).exists():
                (self.root.path / "names" / name).unlink(missing_ok=True)
        named = set(self.names.all().values())
        for entry in scan(self.root.path / "images"):
            manifest = self._read(Path(entry.path))
            if manifest is not None and (
                manifest.kind != "snapshot" or (manifest.key in named and not manifest.temporary)
            ):
                continue
            fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if try_lock(fd):
                    if manifest is not None and self.names.named(manifest.source) == manifest.key:
                        (self.root.path / "names" / manifest.source).unlink()
                    self.root.discard(Path(entry.path))
            finally:
                os.close(fd)

    def _used(self) -> set[str]:
        """The layers of every image, also of those that were removed and still have users."""
        found = (*scan(self.root.path / "images"), *scan(self.root.path / "trash"))
        manifests = (self._read(Path(entry.path)) for entry in found)
        return {key for manifest in manifests if manifest is not None for key in manifest.layers}


def _parse(text: bytes) -> Manifest | None:
    try:
        content = json.loads(text)
        if not content.get("layers"):
            return None
        # Fields come and go with versions; several may share a store.
        known = {item.name: content[item.name] for item in fields(Manifest) if item.name in content}
        for name in ("layers", "notes", "entrypoint"):
            known[name] = tuple(map(str, content.get(name, ())))
        known["binds"] = tuple((source, target) for source, target in content.get("binds", ()))
        return Manifest(**known)
    except (ValueError, TypeError, AttributeError):
        return None  # damaged: as good as gone, and the next sweep takes it
