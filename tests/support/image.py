"""Container images made by hand, for tests: tars with any member, layouts and `docker save` archives of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dutyfree.image.oci.document import this_platform

OCI = "application/vnd.oci.image"


def member(name: str, content: bytes | None = None, **fields: Any) -> tuple[tarfile.TarInfo, bytes | None]:
    """One member: a file if it has content, a directory if its name ends with a slash, else what `fields` say."""
    info = tarfile.TarInfo(name.rstrip("/") or "/")
    info.mode = 0o644
    if name.endswith("/"):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    if content is not None:
        info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def link(name: str, target: str) -> tuple[tarfile.TarInfo, None]:
    """A symlink."""
    return member(name, type=tarfile.SYMTYPE, linkname=target, mode=0o777)[0], None


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, None]:
    """A hard link."""
    return member(name, type=tarfile.LNKTYPE, linkname=target)[0], None


def layer(*members: tuple[tarfile.TarInfo, bytes | None]) -> bytes:
    """A plain tar."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, None if content is None else io.BytesIO(content))
    return file.getvalue()


def digest(content: bytes) -> str:
    """As images write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def config(layers: Sequence[bytes], said: Mapping[str, Any] | None = None, platform: str | None = None) -> bytes:
    """A configuration; `said` is what Dockerfiles say."""
    system, machine = (platform or this_platform()).split("/")[:2]
    document = {
        "architecture": machine,
        "os": system,
        "config": dict(said or {}),
        "rootfs": {"type": "layers", "diff_ids": [digest(item) for item in layers]},
    }
    return json.dumps(document).encode()


class Layout:
    """An OCI layout that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifests: list[dict[str, Any]] = []
        (path / "blobs/sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self._write()

    def blob(self, content: bytes, media_type: str) -> dict[str, Any]:
        """Put a blob; its descriptor."""
        name = digest(content)
        (self.path / "blobs/sha256" / name.removeprefix("sha256:")).write_bytes(content)
        return {"mediaType": media_type, "digest": name, "size": len(content)}

    def manifest(
        self,
        layers: Sequence[bytes],
        *,
        said: Mapping[str, Any] | None = None,
        platform: str | None = None,
        squeeze: Callable[[bytes], bytes] = gzip.compress,
    ) -> dict[str, Any]:
        """Put an image; its descriptor."""
        kind = "+gzip" if squeeze is gzip.compress else ""
        document = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": self.blob(config(layers, said, platform), f"{OCI}.config.v1+json"),
            "layers": [self.blob(squeeze(item), f"{OCI}.layer.v1.tar{kind}") for item in layers],
        }
        return self.blob(json.dumps(document).encode(), f"{OCI}.manifest.v1+json")

    def add(self, entry: dict[str, Any], *, name: str | None = None, platform: str | None = None) -> Layout:
        """Name a manifest or an index in the layout's own index."""
        if name is not None:
            entry = entry | {"annotations": {"org.opencontainers.image.ref.name": name}}
        if platform is not None:
            system, machine = platform.split("/")
            entry = entry | {"platform": {"os": system, "architecture": machine}}
        self._manifests.append(entry)
        self._write()
        return self

    def _write(self) -> None:
        (self.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self._manifests}))


def packed(source: Path, target: Path) -> Path:
    """A directory's files as a plain tar."""
    with tarfile.open(target, "w") as archive:
        for path in sorted(source.rglob("*")):
            archive.add(path, arcname=str(path.relative_to(source)), recursive=False)
    return target


def saved(path: Path, layers: Sequence[bytes], *, said: Mapping[str, Any] | None = None, name: str = "a:1") -> Path:
    """What `docker save` wrote before it wrote layouts; a layer that came before is a symlink, as there."""
    text = config(layers, said)
    title = f"{hashlib.sha256(text).hexdigest()}.json"
    seen: dict[bytes, str] = {}
    members = [member(title, text)]
    places = []
    for index, item in enumerate(layers):
        place = f"{index:064x}/layer.tar"
        places.append(place)
        members.append(link(place, f"../{seen[item]}") if item in seen else member(place, item))
        seen.setdefault(item, place)
    manifest = [{"Config": title, "RepoTags": [name], "Layers": places}]
    members.append(member("manifest.json", json.dumps(manifest).encode()))
    path.write_bytes(layer(*members))
    return path
