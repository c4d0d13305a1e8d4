"""Layers: the read-only directories that images are stacked from.

    <root>/layers/<key>/rootfs      an overlayfs layer: whiteouts are devices 0:0, opaque directories have an attribute
    <root>/layers/<key>/layer.json  what it is
    <root>/layers/<key>/damaged     verification found that it is no longer what it was: to be replaced

A layer appears by one rename and is never changed afterwards. It is kept while an image names it (one that was
removed but is still in use counts), or while a process holds a shared flock on its directory, as whoever published it
does until an image names it. Everything else is garbage, and `collect` in store takes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dutyfree.core import fault
from dutyfree.image.digest import measure
from dutyfree.image.root import Building, StoreRoot, scan, sync, try_lock

_DAMAGED = "damaged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Description of a stored layer; kept as `layer.json`."""

    key: str
    made_s: float
    size_bytes: int
    """Bytes of file content."""
    entries: int
    digest: str
    """Of what was unpacked (`digest.measure`). Empty: it was not computed, so it cannot be verified."""
    source: str = ""
    """Where it came from, for people: the digest of an OCI layer, or nothing."""
    notes: tuple[str, ...] = ()
    """What was left out on the way in, for people."""


class Layers:
    """The layers below one root."""

    def __init__(self, root: StoreRoot) -> None:
        self._root = root
        self._held: dict[str, tuple[int, int]] = {}
        """By key: a locked descriptor, and how often it is held."""
        self._guard = threading.Lock()

    def close(self) -> None:
        """Give up every layer held."""
        with self._guard:
            while self._held:
                os.close(self._held.popitem()[1][0])

    def directory(self, key: str) -> Path:
        """Path of the layer with that key, also if there is none."""
        return self._root.path / "layers" / key

    def path(self, key: str) -> Path:
        """Path to mount. A key that is an absolute path is a directory that is used in place."""
        return Path(key) if key.startswith("/") else self.directory(key) / "rootfs"

    def get(self, key: str) -> Layer | None:
        """Read the description of a layer; None: it is not here, or its description is damaged."""
        if key.startswith("/"):
            return None
        try:
            content = json.loads((self.directory(key) / "layer.json").read_text())
            known = {item.name: content[item.name] for item in fields(Layer) if item.name in content}
            return Layer(**known | {"notes": tuple(content.get("notes", ()))})
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return None

    def is_sound(self, key: str) -> bool:
        """Whether the layer is there, and no verification has found it damaged."""
        path = self.path(key)
        return path.exists() and (path == Path(key) or not (self.directory(key) / _DAMAGED).exists())

    def mark_damaged(self, key: str) -> None:
        """Let the next import that has this layer replace it. Images and sandboxes that have it keep it until then."""
        with self._root.locked(), contextlib.suppress(FileNotFoundError):
            (self.directory(key) / _DAMAGED).touch()

    def all(self) -> list[Layer]:
        """Every layer here."""
        found = (self.get(entry.name) for entry in scan(self._root.path / "layers"))
        return [layer for layer in found if layer is not None]

    def hold(self, key: str) -> bool:
        """Keep a layer from being collected until `release` or `close`. False: there is none."""
        with self._guard:
            if key in self._held:
                self._add(key, self._held[key][0])
                return True
            if key.startswith("/") or not self.directory(key).exists():
                return False
            with self._root.locked():
                try:
                    fd = os.open(self.directory(key), os.O_RDONLY | os.O_DIRECTORY)
                except FileNotFoundError:
                    return False
                # Nobody has it exclusively while we have the store's lock.
                fcntl.flock(fd, fcntl.LOCK_SH)
            self._add(key, fd)
            return True

    def hold_sound(self, key: str) -> bool:
        """The same, but False also for a layer that was found damaged: `publish` replaces it."""
        return self.is_sound(key) and self.hold(key)

    def _add(self, key: str, fd: int) -> None:
        self._held[key] = fd, self._held.get(key, (fd, 0))[1] + 1

    def release(self, key: str) -> None:
        """Hold a layer once less: it stays while an image names it. One that is not held is fine."""
        with self._guard:
            fd, count = self._held.pop(key, (-1, 0))
            if count > 1:
                self._held[key] = fd, count - 1
            elif count:
                os.close(fd)

    def publish(
        self,
        draft: Building,
        *,
        key: str | None = None,
        hashed: bool = True,
        durable: bool = True,
        source: str = "",
        notes: tuple[str, ...] = (),
    ) -> Layer:
        """Make what is in the draft a layer, by one rename; held by us.

        If the key is taken, that layer stays, unless it was found damaged: then the draft replaces it.

        key: None is the digest of the content · hashed: the content is read, so that it can be verified later (without
        this and without a key, the key is a random one) · durable: on disk before it is visible.
        """
        return self.show(
            draft, self.prepare(draft, key=key, hashed=hashed, durable=durable, source=source, notes=notes)
        )

    def prepare(
        self,
        draft: Building,
        *,
        key: str | None = None,
        hashed: bool = True,
        durable: bool = True,
        source: str = "",
        notes: tuple[str, ...] = (),
    ) -> Layer:
        """The long half of `publish`, of which nothing can be seen yet: the content is forced to disk while it is read."""
        with ThreadPoolExecutor(1, "dutyfree-sync") if durable else contextlib.nullcontext() as beside:
            flushed = beside.submit(sync, draft.lock_fd) if beside else None
            layer = self._described(draft, key=key, hashed=hashed, source=source, notes=notes)
            with (draft.path / "layer.json").open("w") as file:
                file.write(json.dumps(asdict(layer), indent=1) + "\n")
                file.flush()
                if flushed is not None:
                    flushed.result()
                    os.fsync(file.fileno())
                    os.fsync(draft.lock_fd)
        return layer

    def _described(
        self, draft: Building, *, key: str | None, hashed: bool, source: str, notes: tuple[str, ...]
    ) -> Layer:
        weighed = measure(draft.rootfs, hashed=hashed)
        key = key or weighed.digest or secrets.token_hex(32)
        return Layer(
            key=key,
            made_s=time.time(),
            size_bytes=weighed.size_bytes,
            entries=weighed.entries,
            digest=weighed.digest,
            source=source,
            notes=notes,
        )

    def show(self, draft: Building, layer: Layer) -> Layer:
        """The short half: what was prepared becomes visible, held by us; what is the layer from now on."""
        key = layer.key
        with self._guard, self._root.locked():
            fault.at("dutyfree.store.publish", key)
            if self.directory(key).exists() and not self.is_sound(key):
                self._root.discard(self.directory(key))
            made = self._rename(draft.path, key)
            fd = os.dup(draft.lock_fd) if made else os.open(self.directory(key), os.O_RDONLY | os.O_DIRECTORY)
            # From exclusive to shared, or afresh; nobody looks before the store's lock is free.
            fcntl.flock(fd, fcntl.LOCK_SH)
            old, count = self._held.pop(key, (-1, 0))
            if count:
                os.close(old)
            self._held[key] = fd, count + 1
        return self.get(key) or layer

    def _rename(self, path: Path, key: str) -> bool:
        # Fails on a directory that is not empty, which is what a layer that came first is.
        try:
            path.rename(self.directory(key))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True

    def discard(self, key: str) -> None:
        """Take a damaged layer from view, whoever names it: the next to publish that key repairs those images."""
        with self._root.locked(), contextlib.suppress(FileNotFoundError):
            self._root.discard(self.directory(key))

    def discard_unused(self, used: set[str]) -> None:
        """Take from view each layer that is not in `used` and that nobody holds. Under the store's lock."""
        for entry in scan(self._root.path / "layers"):
            if entry.name in used:
                continue
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    if try_lock(fd):
                        self._root.discard(Path(entry.path))
                finally:
                    os.close(fd)
