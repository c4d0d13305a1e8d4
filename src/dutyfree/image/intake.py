"""Brings a rootfs, from a tar or a directory, into the store under the key of its content."""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import re
import tarfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.image import rootfs as image_rootfs
from dutyfree.image.archive import MAX_BYTES, Unpacked, unpack
from dutyfree.image.oci.intake import import_path
from dutyfree.image.root import Building, Progress, ignore
from dutyfree.image.store import Manifest, Store
from dutyfree.image.stream import Ahead, Hashed, Told, decompressed, from_directory

_FORMAT = "rootfs-1"
_CHUNK_BYTES = 1 << 20
_SAVED = re.compile(
    r"(\./)?(blobs|oci-layout|index\.json|manifest\.json|repositories|(sha256:)?[0-9a-f]{64}(\.json|\.tar(\.gz)?)?)(/|$)"
)
"""What the first member of a saved image is called: docker's, podman's and skopeo's, crane's and kaniko's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """Fields of the manifest that the caller knows and the tree does not show."""

    kind: str
    source: str
    recipe: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def stamp(status: os.stat_result) -> list[int]:
    """By this a changed file is told without reading it."""
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def import_archive(
    store: Store,
    path: Path,
    *,
    about: About | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Progress = ignore,
) -> Manifest:
    """The image of the archive at a path; unpacks it unless the store has the same bytes already. Blocks."""
    with _opened(path) as file:
        if about is None and holds_image(file):
            return import_path(store, path, max_bytes=max_bytes, progress=progress)
        about = about or About(kind="archive", source=os.fspath(path))
        before = stamp(os.fstat(file.fileno()))
        progress.expect(2 * before[2])
        key = _key(_digest(file, progress))
        with store.exclusive(key):
            manifest = store.images.whole(key)
            if manifest is None:
                file.seek(0)
                with store.images.building() as building:
                    with contextlib.closing(Ahead(decompressed(file, Told(file, progress)))) as ahead:
                        result = unpack(ahead, building.rootfs, max_bytes=max_bytes)
                    if stamp(os.fstat(file.fileno())) != before:
                        raise Misuse(f"{path} changed while it was read", field="image")
                    if about.kind == "archive" and image_rootfs.is_saved_image(building.rootfs):
                        # Whoever saved it began with another member than all who are known.
                        return import_path(store, path, max_bytes=max_bytes, progress=progress)
                    manifest = _publish(store, building, key, result, about)
    return manifest


def import_directory(
    store: Store,
    path: Path,
    *,
    about: About | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Progress = ignore,
) -> Manifest:
    """A frozen copy of a directory, as an image. Blocks."""
    about = about or About(kind="directory", source=os.fspath(path))
    image_rootfs.check(path, name=os.fspath(path), imported=True)
    with store.images.building() as building, from_directory(path) as stream:
        progress.expect(0)
        hashed = Hashed(Told(stream, progress))
        result = unpack(hashed, building.rootfs, max_bytes=max_bytes)
        # The padding after the end marker is unread yet; reading it lets the writer end in peace.
        while hashed.read(_CHUNK_BYTES):
            pass
        key = _key(hashed.digest.hexdigest())
        return store.images.whole(key) or _publish(store, building, key, result, about)


def holds_image(file: IO[bytes]) -> bool:
    """Whether an archive's first member is one of a saved image or a layout, and not of a rootfs."""
    try:
        with tarfile.open(fileobj=decompressed(file), mode="r|") as archive:  # type: ignore[call-overload]
            first = archive.next()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, RecursionError):
        first = None  # whoever reads it in earnest says what is wrong
    file.seek(0)
    return first is not None and _SAVED.match(first.name) is not None


def _publish(store: Store, building: Building, key: str, result: Unpacked, about: About) -> Manifest:
    image_rootfs.check(building.rootfs, name=about.source, imported=True)
    manifest = Manifest(
        key=key,
        kind=about.kind,
        made_s=time.time(),
        size_bytes=result.size_bytes,
        source=about.source,
        recipe=about.recipe,
        env=about.env,
        notes=about.notes + result.notes,
    )
    return store.publish(building, manifest)


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except PermissionError as error:
        raise Unavailable(f"image {path} cannot be read", enable=f"chmod a+r {path}") from error
    except OSError as error:
        raise Misuse(f"{path} cannot be read: {error.strerror}", field="image") from error


def _digest(file: IO[bytes], progress: Progress) -> str:
    hashed = Hashed(Told(file, progress))
    while hashed.read(_CHUNK_BYTES):
        pass
    return hashed.digest.hexdigest()


def _key(digest: str) -> str:
    # The format is part of the key: another way of unpacking the same bytes makes another image.
    return hashlib.sha256(f"{_FORMAT}\0{digest}".encode()).hexdigest()
