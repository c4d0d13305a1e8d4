"""A static program as an image that `ctr images import` takes: python3 pause_image.py PROGRAM TARGET."""

import hashlib
import io
import json
import platform
import sys
import tarfile

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
NAME = "dutyfree/pause:1"


def tar_of(members: dict[str, bytes], mode: int) -> bytes:
    """An archive of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def main(program: str, target: str) -> None:
    """One layer, one entry point."""
    with open(program, "rb") as file:
        layer = tar_of({"pause": file.read()}, 0o755)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": MACHINES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]).encode()
    with open(target, "wb") as file:
        file.write(tar_of({"layer.tar": layer, "config.json": config, "manifest.json": manifest}, 0o644))


main(*sys.argv[1:])
