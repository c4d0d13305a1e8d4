"""An image of the store in the forms that others load: a plain tar, a `docker load` archive, an OCI layout, a disk.

All but the disk hold the same one layer, uncompressed, and are the same bytes for the same image. Written beside the
target and renamed into place, so a target is whole or absent. Refuses a target that exists.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.image.disk import write_disk
from dutyfree.image.export import rootfs_tar
from dutyfree.image.resolve import Image

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = "1970-01-01T00:00:00Z"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


def reference(image: Image) -> str:
    """Name of the image for container engines."""
    name = "rootfs" if image.name.startswith("/") else image.name
    return f"dutyfree/{name}:{image.key[:32]}"


def export(image: Image, form: str, target: Path) -> None:
    """Write `image` to `target` as `tar`, `docker`, `oci` (a directory) or `disk` (ext4). Blocks."""
    writers: dict[str, Callable[[Image, Path], None]] = {
        "tar": _write_tar,
        "docker": _write_docker,
        "oci": _write_oci,
        "disk": write_disk,
    }
    writer = writers[form]
    if target.exists() or target.is_symlink():
        raise Misuse(f"{target} exists already", field="output")
    if not target.parent.is_dir():
        raise Misuse(f"{target.parent} is no directory", field="output")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        work = Path(scratch) / "work"
        writer(image, work)
        work.rename(target)


def _write_tar(image: Image, work: Path) -> None:
    with work.open("wb") as file:
        for piece in rootfs_tar(image):
            file.write(piece)


def _write_docker(image: Image, work: Path) -> None:
    layer = work.with_name("layer")
    digest = _layer(image, layer)
    config = _encoded(_config(image, digest))
    name = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{name}.json", "RepoTags": [reference(image)], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(work, "w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in ((f"{name}.json", config), ("manifest.json", _encoded(manifest))):
            archive.addfile(_member(member, len(content)), BytesIO(content))
        with layer.open("rb") as file:
            archive.addfile(_member(f"{digest}/layer.tar", layer.stat().st_size), file)


def _write_oci(image: Image, work: Path) -> None:
    blobs = work / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    work.chmod(0o755)
    layer = work / "layer"
    digest = _layer(image, layer)
    size = layer.stat().st_size
    shutil.move(layer, blobs / digest)

    def blob(value: Any, kind: str) -> dict[str, Any]:
        content = _encoded(value)
        name = hashlib.sha256(content).hexdigest()
        (blobs / name).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{name}", "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": blob(_config(image, digest), _CONFIG_TYPE),
        "layers": [{"mediaType": _LAYER_TYPE, "digest": f"sha256:{digest}", "size": size}],
    }
    entry = blob(manifest, _MANIFEST_TYPE)
    entry["annotations"] = {"org.opencontainers.image.ref.name": reference(image)}
    (work / "index.json").write_bytes(_encoded({"schemaVersion": 2, "manifests": [entry]}))
    (work / "oci-layout").write_bytes(_encoded({"imageLayoutVersion": "1.0.0"}))


def _layer(image: Image, path: Path) -> str:
    """Write the layer; its digest."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in rootfs_tar(image):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _config(image: Image, digest: str) -> dict[str, Any]:
    return {
        "created": _EPOCH,
        "architecture": _MACHINES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in sorted(image.env.items())],
            "Cmd": ["/bin/sh"],
            "WorkingDir": image.cwd or "",
            "User": image.user or "",
            "Labels": {"dutyfree.image": image.key},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": _EPOCH, "created_by": "dutyfree image export"}],
    }


def _encoded(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info
