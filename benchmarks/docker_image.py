"""A rootfs for docker to run `true` in: the `bench` image where it is built, else the few programs it takes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from dutyfree.image.store import Store

PROGRAMS = ("true", "bash", "sh", "sleep", "cat", "ls")


def rootfs_tar(work: Path) -> tuple[Path, str]:
    """A tar of a rootfs, and what it is made of."""
    store = Store.default()
    try:
        key = store.named("bench")
        if key is not None and store.images.hold(key):
            manifest = store.manifest(key)
            if manifest is not None and len(manifest.layers) == 1:
                return _pack(store.images.layer_paths(manifest)[0], work), "the bench image"
        return _pack(_assemble(work / "rootfs"), work), "bash and coreutils of this machine"
    finally:
        store.close()


def _pack(rootfs: Path, work: Path) -> Path:
    archive = work / "rootfs.tar"
    line = [
        "tar",
        "--create",
        "--file",
        str(archive),
        "--one-file-system",
        "--numeric-owner",
        "--directory",
        str(rootfs),
        ".",
    ]
    subprocess.run(line, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return archive


def _assemble(rootfs: Path) -> Path:
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "root"):
        (rootfs / name).mkdir(parents=True)
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        if found is None:
            continue
        shutil.copy2(found, rootfs / "bin" / name)
        for library in _libraries(found):
            target = rootfs / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(os.path.realpath(library), target)
    return rootfs


def _libraries(program: str) -> list[str]:
    done = subprocess.run(["ldd", program], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return re.findall(r"(/\S+) \(0x", done.stdout.decode())
