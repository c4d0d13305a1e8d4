"""OCI layouts and `docker save` archives, as directories or tars, compressed or not. Reads them where they are."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.image.oci.document import (
    MAX_DOCUMENT_BYTES,
    Descriptor,
    configuration,
    descriptors,
    parse,
    wrong,
)
from dutyfree.image.oci.source import (
    Blob,
    Source,
    check_platform,
    check_size,
    from_manifest,
    narrow,
    verified,
)

_MAX_MEMBERS = 20_000
_MAX_LINKS = 8


class Shelf:
    """Files by name: of a directory, or of a plain tar that stays open."""

    def __init__(self, names: Callable[[], set[str]], opened: Callable[[str], IO[bytes] | None]) -> None:
        self._names = names
        self._opened = opened

    def names(self) -> set[str]:
        """Those at the top that tell what this is."""
        return self._names()

    def open(self, name: str) -> IO[bytes]:
        """A file at its start; Misuse if it is not there."""
        file = self._opened(name)
        if file is None:
            raise wrong(f"the image lacks its file {name[:200]!r}")
        return file

    def read(self, name: str) -> bytes:
        """A small file."""
        with self.open(name) as file:
            text = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(text) > MAX_DOCUMENT_BYTES:
            raise wrong(f"the image's {name[:200]!r} is larger than any such document")
        return text


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Shelf]:
    """A directory or a plain tar as a shelf."""
    if path.is_dir():
        yield Shelf(lambda: set(os.listdir(path)), lambda name: _in_directory(path, name))
        return
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            table = _table(archive)
            yield Shelf(lambda: {name.partition("/")[0] for name in table}, lambda name: _in_tar(archive, table, name))
    except (tarfile.TarError, EOFError, RecursionError) as error:
        raise wrong(f"{path} is no readable archive: {error}") from error
    except PermissionError as error:
        raise Unavailable(f"image {path} cannot be read", enable=f"chmod a+r {path}") from error


def is_image(shelf: Shelf) -> bool:
    """A layout or a saved image, and not a rootfs."""
    names = shelf.names()
    signs = "oci-layout" in names or "manifest.json" in names
    return signs and not names.intersection(("bin", "usr", "etc"))


def find(shelf: Shelf, *, name: str, reference: str | None, platform: str) -> Source:
    """The image in a layout or a saved archive; `reference` chooses where there are several."""
    if "index.json" in shelf.names():
        return _Layout(shelf).find(name=name, reference=reference, platform=platform)
    return _saved(shelf, name=name, reference=reference, platform=platform)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Documents by digest: in the directory that OCI says, or beside each other as podman's `docker-dir` has them."""

    shelf: Shelf
    flat: bool = False

    def find(self, *, name: str, reference: str | None, platform: str) -> Source:
        found = descriptors(parse(self.shelf.read("index.json"), "index.json"), "manifests")
        names = sorted({item.name for item in found if item.name})
        if reference is not None:
            found = [item for item in found if _is_called(item.name, reference)]
            if not found:
                raise _no_such(reference, names)
        elif len(names) > 1:
            raise _several(names)
        source = from_manifest(self, narrow(self, found, platform), name=name)
        check_platform(configuration(source.config).platform, platform, name)
        return source

    def document(self, item: Descriptor) -> bytes:
        check_size(item)
        return verified(self.shelf.read(self._place(item.digest)), item)

    def blob(self, item: Descriptor) -> Blob:
        return Blob(digest=item.digest, open=lambda: self.shelf.open(self._place(item.digest)), size=item.size)

    def _place(self, digest: str) -> str:
        return digest.partition(":")[2] if self.flat else f"blobs/{digest.replace(':', '/')}"


def _saved(shelf: Shelf, *, name: str, reference: str | None, platform: str) -> Source:
    """Read the older formats: `docker save` before it wrote layouts, and `podman save --format docker-dir`."""
    text = shelf.read("manifest.json")
    document = parse(b'{"images": ' + text + b"}", "manifest.json").get("images")
    if isinstance(document, dict):
        if reference is not None:
            raise _no_such(reference, [])
        source = from_manifest(_Layout(shelf, flat=True), text, name=name)
        check_platform(configuration(source.config).platform, platform, name)
        return source
    images = [item for item in document if isinstance(item, dict)] if isinstance(document, list) else []
    names = sorted({str(tag) for item in images for tag in item.get("RepoTags") or []})
    if reference is not None:
        images = [item for item in images if any(_is_called(str(tag), reference) for tag in item.get("RepoTags") or [])]
        if not images:
            raise _no_such(reference, names)
    if len(images) != 1:
        raise _several(names) if images else wrong(f"{name} holds no image")
    return _saved_image(shelf, images[0], name=name, platform=platform)


def _saved_image(shelf: Shelf, image: dict[str, Any], *, name: str, platform: str) -> Source:
    config, layers = image.get("Config"), image.get("Layers")
    if not isinstance(config, str) or not isinstance(layers, list):
        raise wrong(f"{name} has no configuration or no layers")
    text = shelf.read(config)
    check_platform(configuration(text).platform, platform, name)
    blobs = tuple(_kept(shelf, str(place)) for place in layers)
    return Source(name=name, config=text, layers=blobs)


def _kept(shelf: Shelf, place: str) -> Blob:
    with shelf.open(place) as file:
        size = file.seek(0, os.SEEK_END)
    return Blob(digest="", open=lambda: shelf.open(place), size=size)


def _is_called(name: str, reference: str) -> bool:
    return (
        name == reference or name.endswith((f"/{reference}", f"/{reference}:latest")) or name == f"{reference}:latest"
    )


def _in_directory(path: Path, name: str) -> IO[bytes] | None:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        return None
    try:
        # The directory is the caller's own; a document in it may still not lead elsewhere.
        place = (path / name).resolve()
        return place.open("rb") if place.is_relative_to(path.resolve()) and place.is_file() else None
    except OSError:
        return None


def _table(archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    table: dict[str, tarfile.TarInfo] = {}
    while (member := archive.next()) is not None:
        table[posixpath.normpath(member.name)] = member
        if len(table) > _MAX_MEMBERS:
            # A rootfs, most likely; enough is known to tell that.
            break
    return table


def _in_tar(archive: tarfile.TarFile, table: Mapping[str, tarfile.TarInfo], name: str) -> IO[bytes] | None:
    place = posixpath.normpath(name)
    for _ in range(_MAX_LINKS):
        member = table.get(place)
        if member is None:
            return None
        if member.isreg():
            # Anew for each reader: an archive has one position.
            return cast("io.BufferedReader", archive.extractfile(member))
        if not (member.issym() or member.islnk()):
            return None
        # Docker once wrote a layer that came before as a link to it.
        base = posixpath.dirname(place) if member.issym() else ""
        place = posixpath.normpath(posixpath.join(base, member.linkname))
    return None


def _no_such(reference: str, names: list[str]) -> Misuse:
    there = f"it has {', '.join(names)}" if names else "its images have no names"
    return Misuse(f"there is no {reference!r} in it: {there}", field="reference")


def _several(names: list[str]) -> Misuse:
    return Misuse(f"holds several images: choose one with --reference ({', '.join(names)})", field="reference")
