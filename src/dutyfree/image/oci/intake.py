"""Brings an OCI image into the store: one store layer for each of its layers, keyed by the chain of those below it.

A layer that is there is not opened again, whichever image brought it. Every digest is checked before a layer becomes
visible; what is cancelled or killed leaves layers that are whole, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from dutyfree.core.errors import DriverError, Misuse
from dutyfree.image import rootfs as image_rootfs
from dutyfree.image.archive import MAX_BYTES, Unpacked
from dutyfree.image.layer import Layer
from dutyfree.image.oci import layout
from dutyfree.image.oci.document import Configuration, configuration, this_platform, wrong
from dutyfree.image.oci.layer import make_folder, unpack_layer
from dutyfree.image.oci.source import Blob, Checked, Source
from dutyfree.image.root import Building, Progress, ignore
from dutyfree.image.stack import MAX_IMPORTED, shorten
from dutyfree.image.store import Manifest, Store
from dutyfree.image.stream import Ahead, Told, decompressed
from dutyfree.image.view import View

_FORMAT = "oci-layer-1"
_CHUNK_BYTES = 1 << 20
_MAX_TAIL_BYTES = 64 << 20
"""After a tar's end: padding, which compresses to nothing, so that a small file could go on for terabytes."""


def import_path(
    store: Store,
    path: Path,
    *,
    reference: str | None = None,
    platform: str | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Progress = ignore,
) -> Manifest:
    """The image in a layout or saved archive at a path. Blocks."""
    with _plain(store, path, max_bytes, progress) as place, layout.opened(place) as shelf:
        found = layout.find(shelf, name=os.fspath(path), reference=reference, platform=platform or this_platform())
        return import_image(store, found, max_bytes=max_bytes, progress=progress)


def import_image(store: Store, source: Source, *, max_bytes: int = MAX_BYTES, progress: Progress = ignore) -> Manifest:
    """The image a source gives, in the store. Blocks."""
    config = configuration(source.config)
    if len(config.diff_ids) != len(source.layers):
        raise wrong(f"{source.name} has {len(source.layers)} layers, and a configuration of {len(config.diff_ids)}")
    keys = _chain(config.diff_ids)
    held: list[str] = []
    try:
        held += [key for key in keys if store.layers.hold_sound(key)]
        there = set(held)
        absent = [blob for blob, key in zip(source.layers, keys, strict=True) if key not in there]
        progress.expect(sum(blob.size for blob in absent))
        source.fetch(absent)
        with _Arrivals(store, held, max_bytes=max_bytes, progress=progress) as arrivals:
            for blob, key, diff_id in zip(source.layers, keys, config.diff_ids, strict=True):
                if key in there:
                    arrivals.pass_by(key)
                else:
                    arrivals.bring(blob, key, diff_id)
        return _saved(store, source, config, tuple(reversed(keys)), held)
    finally:
        for key in held:
            store.layers.release(key)


def _saved(store: Store, source: Source, config: Configuration, layers: tuple[str, ...], held: list[str]) -> Manifest:
    if config.cwd and (folder := _folder(store, layers, config.cwd)) is not None:
        held.append(folder)
        layers = (folder, *layers)
    image_rootfs.check_stack([store.layers.path(key) for key in layers], name=source.name)
    shorter = shorten(store.images, layers, MAX_IMPORTED)
    held += [key for key in shorter if key not in layers]
    known = [layer for layer in map(store.layers.get, layers) if layer is not None]
    return store.save(
        Manifest(
            key=_key(shorter, config),
            kind="oci",
            made_s=time.time(),
            size_bytes=sum(layer.size_bytes for layer in known),
            source=source.name,
            layers=shorter,
            env=config.env,
            cwd=config.cwd,
            user=config.user,
            entrypoint=config.entrypoint,
            notes=tuple(dict.fromkeys(note for layer in known for note in layer.notes)),
        )
    )


class _Arrivals:
    """The layers of one image on their way in, lowest first.

    While one is unpacked, the one below it is read again for its digest and forced to disk; it becomes visible before
    the next but one begins. So two cores and the disk work at once, and a layer is still whole or absent.
    """

    def __init__(self, store: Store, held: list[str], *, max_bytes: int, progress: Progress) -> None:
        self._store = store
        self._held = held
        self._left = max_bytes
        self._progress = progress
        self._below: list[str] = []
        self._pool = ThreadPoolExecutor(1, "dutyfree-layer")
        self._open = contextlib.ExitStack()
        """What the layer that is being prepared keeps: its lock, and its draft."""
        self._draft: Building | None = None
        self._prepared: Future[Layer] | None = None

    def __enter__(self) -> _Arrivals:
        return self

    def __exit__(self, *exc: object) -> None:
        # What was unpacked is whole, whatever became of the layer above it.
        try:
            self._settle()
        finally:
            self._pool.shutdown()

    def pass_by(self, key: str) -> None:
        """The next layer is in the store, and held."""
        layer = self._store.layers.get(key)
        self._left -= layer.size_bytes if layer is not None else 0
        self._below.insert(0, key)

    def bring(self, blob: Blob, key: str, diff_id: str) -> None:
        """Unpack the next layer, unless somebody else has brought it meanwhile."""
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._store.exclusive(key))
            if self._store.layers.hold_sound(key):
                self._held.append(key)
                self.pass_by(key)
                return
            draft = opened.enter_context(self._store.draft_layer())
            with blob.open() as file:
                result = self._unpack(file, blob, draft, diff_id)
            self._settle()
            self._left -= result.size_bytes
            self._below.insert(0, key)
            self._open, self._draft = opened.pop_all(), draft
            self._prepared = self._pool.submit(
                self._store.layers.prepare, draft, key=key, source=diff_id, notes=result.notes
            )

    def _settle(self) -> None:
        """Show the layer that is being prepared."""
        draft, prepared = self._draft, self._prepared
        self._draft = self._prepared = None
        with self._open:
            if draft is not None and prepared is not None:
                self._held.append(self._store.layers.show(draft, prepared.result()).key)

    def _view(self) -> View:
        layers = [self._store.layers.path(key) for key in self._below]
        if self._draft is not None:
            layers[0] = self._draft.rootfs
        return View(layers)

    def _unpack(self, file: IO[bytes], blob: Blob, draft: Building, diff_id: str) -> Unpacked:
        packed = Checked(Told(file, self._progress), blob.digest or diff_id)
        plain = Checked(decompressed(file, packed), diff_id)
        with contextlib.closing(Ahead(plain)) as ahead:
            try:
                result = unpack_layer(ahead, draft.rootfs, self._view(), max_bytes=max(self._left, 0))
            except Misuse:
                ahead.close()
                if blob.digest:
                    # Other bytes than were promised explain whatever else is wrong with them.
                    packed.finish(f"layer {blob.digest[:19]}")
                raise
        _finish(plain, diff_id)
        if blob.digest:
            packed.finish(f"layer {blob.digest[:19]}")
        return result


def _finish(plain: Checked, diff_id: str) -> None:
    try:
        plain.finish(f"layer {diff_id[:19]}", most=_MAX_TAIL_BYTES)
    except (EOFError, zlib.error, OSError) as error:
        raise wrong(f"layer {diff_id[:19]} is damaged: {error}") from error


def _chain(diff_ids: Sequence[str]) -> list[str]:
    """Keys, lowest first: what a layer unpacks to depends on what is below it."""
    keys: list[str] = []
    for diff_id in diff_ids:
        keys.append(_digest(_FORMAT, keys[-1] if keys else "", diff_id))
    return keys


def _folder(store: Store, layers: tuple[str, ...], cwd: str) -> str | None:
    """A layer that makes the image's working directory, where it has none, as engines do; None: it has one."""
    view = View([store.layers.path(key) for key in layers])
    parts = [part for part in cwd.split("/") if part]
    for count in range(len(parts)):
        entry = view.entry(parts[: count + 1])
        if entry is None:
            break
        if not stat.S_ISDIR(entry.status.st_mode):
            return None  # a symlink or worse: whoever starts there will be told
    else:
        return None
    key = _digest("oci-folder-1", layers[0], cwd)
    with store.exclusive(key):
        if not store.layers.hold_sound(key):
            with store.draft_layer() as draft:
                make_folder(cwd, draft.rootfs, view)
                store.layers.publish(draft, key=key, source=f"WORKDIR {cwd}")
    return key


@contextlib.contextmanager
def _plain(store: Store, path: Path, max_bytes: int, progress: Progress) -> Iterator[Path]:
    """A directory or an archive one can seek in: a compressed one is decompressed beside the layers."""
    if path.is_dir():
        yield path
        return
    with path.open("rb") as file:
        if decompressed(file) is file:
            yield path
            return
        progress.expect(path.stat().st_size)
        stream = decompressed(file, Told(file, progress))
        with store.draft_layer() as draft:
            place = draft.path / "archive"
            with place.open("wb") as target:
                _copy(stream, target, max_bytes)
            yield place


def _copy(stream: object, target: IO[bytes], max_bytes: int) -> None:
    read = stream.read  # type: ignore[attr-defined]
    size = 0
    try:
        while data := read(_CHUNK_BYTES):
            size += len(data)
            if size > max_bytes:
                raise Misuse(f"the archive is larger than the cap of {max_bytes} bytes", field="image")
            target.write(data)
    except (EOFError, zlib.error) as error:
        raise wrong(f"the archive is damaged: {error}") from error
    except OSError as error:
        if error.errno is None:
            raise wrong(f"the archive is damaged: {error}") from error
        raise DriverError(f"cannot unpack: {error}", step="image") from error


def _key(layers: Sequence[str], config: Configuration) -> str:
    """The same for the same image, whoever wrote its configuration down: engines and layouts word it differently."""
    said = [sorted(config.env.items()), config.cwd, config.user, config.entrypoint]
    return _digest("oci-image-2", *layers, json.dumps(said))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
