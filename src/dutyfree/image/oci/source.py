"""Source of an image for the importer: a configuration, and layers that can be opened."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Protocol

from dutyfree.core.errors import Misuse
from dutyfree.image.oci.document import (
    INDEX_TYPES,
    MAX_DOCUMENT_BYTES,
    Descriptor,
    choose,
    descriptor,
    descriptors,
    fits,
    parse,
    wrong,
)
from dutyfree.image.stream import Readable

_CHUNK_BYTES = 1 << 20
_MAX_NESTING = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """One layer as it is kept elsewhere."""

    digest: str
    """Of the bytes as they are, compressed perhaps; empty where nobody said: the plain layer's digest is checked too."""
    open: Callable[[], AbstractContextManager[IO[bytes]]]
    """A file at its start. Blocks while it is fetched."""
    size: int = 0
    """Bytes as they are; 0: nobody said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An image that can be imported."""

    name: str
    """For people."""
    config: bytes
    layers: tuple[Blob, ...]
    """Lowest first."""
    fetch: Callable[[Sequence[Blob]], None] = lambda _: None
    """Told once which layers will be opened, so that they can be on their way together."""


class Documents(Protocol):
    """Something that holds documents by digest: a layout or a registry."""

    def document(self, item: Descriptor) -> bytes:
        """The bytes of a small document, verified."""
        ...

    def blob(self, item: Descriptor) -> Blob:
        """A layer."""
        ...


def from_manifest(documents: Documents, manifest: bytes, *, name: str) -> Source:
    """The image of a manifest."""
    document = parse(manifest, "the image's manifest")
    if document.get("schemaVersion") != 2 or "config" not in document:
        raise wrong(f"{name} is no image manifest of version 2")
    layers = descriptors(document, "layers")
    for layer in layers:
        if "tar" not in layer.media_type:
            raise wrong(f"{name} has a layer of type {layer.media_type[:100]!r}, which is no filesystem")
    config = documents.document(descriptor(document["config"], "config"))
    return Source(name=name, config=config, layers=tuple(documents.blob(layer) for layer in layers))


def narrow(documents: Documents, found: Sequence[Descriptor], platform: str) -> bytes:
    """The manifest for a platform, through indexes of indexes."""
    for _ in range(_MAX_NESTING):
        item = choose(found, platform)
        text = documents.document(item)
        document = parse(text, "the image's manifest")
        if item.media_type not in INDEX_TYPES and "manifests" not in document:
            return text
        found = descriptors(document, "manifests")
    raise wrong("the image's indexes are nested too deeply")


def check_platform(has: str, wanted: str, name: str) -> None:
    """Refuse an image for another kind of machine."""
    if has and not fits(has, wanted):
        raise wrong(f"{name} is for {has}, not {wanted} (see --platform)")


def verified(text: bytes, item: Descriptor) -> bytes:
    """A document that is what its descriptor says."""
    if len(text) != item.size or digest_of(text, item.digest) != item.digest:
        raise wrong(f"{item.digest[:19]} is damaged: its bytes are not those its digest names")
    return text


def check_size(item: Descriptor) -> None:
    """Refuse a document that no image has."""
    if item.size > MAX_DOCUMENT_BYTES:
        raise wrong(f"document {item.digest[:19]} claims {item.size} bytes")


def digest_of(text: bytes, like: str) -> str:
    """The digest of some bytes, by the same algorithm as another digest."""
    kind = like.partition(":")[0]
    return f"{kind}:{hashlib.new(kind, text).hexdigest()}"


class Checked:
    """A view of a stream that hashes what passes, and compares at the end."""

    def __init__(self, stream: Readable, expected: str) -> None:
        self._stream = stream
        self._expected = expected
        self._digest = hashlib.new(expected.partition(":")[0])

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        data = self._stream.read(size)
        self._digest.update(data)
        return data

    def finish(self, what: str, *, most: int | None = None) -> None:
        """Read what is left, no more than `most`, and refuse bytes that are not those the digest names."""
        left = most
        while data := self.read(_CHUNK_BYTES):
            if left is not None and (left := left - len(data)) < 0:
                raise wrong(f"{what} goes on for more than {most} bytes after its end")
        if f"{self._digest.name}:{self._digest.hexdigest()}" != self._expected:
            raise Misuse(f"{what} is damaged: its bytes are not those of {self._expected[:19]}", field="image")
