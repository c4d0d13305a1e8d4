"""An image of the store as a disk: an ext4 filesystem in a sparse file, made without mounting anything.

Refuses an image of several layers: the tool takes one directory.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dutyfree.core.errors import DriverError, Unavailable, Unsupported
from dutyfree.image.resolve import Image
from dutyfree.image.room import reserve

MKFS = "/usr/sbin/mkfs.ext4"
ENABLE = "apt-get install -y e2fsprogs"

_MIB = 1 << 20
_INODE_BYTES = 256


def write_disk(image: Image, target: Path) -> None:
    """Write `image` to `target`. Blocks for seconds. Nothing may be written to it later: it has no room and no journal."""
    if len(image.layers) != 1 or image.binds:
        raise Unsupported(f"image {image.name!r} is not one directory, so no disk can be made of it")
    content_bytes, entries = _size(image.layers[0])
    size_bytes = content_bytes + content_bytes // 16 + entries * _INODE_BYTES + 32 * _MIB
    make_filesystem(
        target,
        size_bytes,
        ["-d", os.fspath(image.layers[0]), "-O", "^has_journal", "-m", "0", "-N", str(entries + 1024)],
    )


def make_writable(target: Path, size_bytes: int) -> None:
    """An empty disk for one user, in a new file whose blocks are all its own: `Saturated` if there is no room."""
    make_filesystem(target, size_bytes, ["-O", "^has_journal", "-m", "0"])
    with target.open("r+b") as file:
        reserve(file.fileno(), size_bytes, target.parent)


def make_filesystem(target: Path, size_bytes: int, options: list[str]) -> None:
    """An ext4 filesystem in a new sparse file."""
    if not Path(MKFS).exists():
        raise Unavailable("mkfs.ext4 is not installed", enable=ENABLE)
    with target.open("xb") as file:
        file.truncate(size_bytes // 4096 * 4096)
    made = subprocess.run(
        [MKFS, "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=1,nodiscard", *options, os.fspath(target)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "E2FSPROGS_FAKE_TIME": "1577836800"},
    )
    if made.returncode != 0:
        raise DriverError(f"mkfs.ext4 failed ({made.returncode}): {made.stderr.strip()}", step="image")


def _size(root: Path) -> tuple[int, int]:
    """Bytes in whole blocks, and entries."""
    size_bytes = entries = 0
    for _, folders, files, fd in os.fwalk(root):
        entries += len(folders) + len(files)
        size_bytes += 4096 * len(folders)
        for name in files:
            size_bytes += -(-os.stat(name, dir_fd=fd, follow_symlinks=False).st_size // 4096) * 4096
    return size_bytes, entries
