"""Disk-backed scratch space: an ext4 image per sandbox, in a file without a name.

Owns the templates (one empty image per size, made by mkfs once). A sandbox gets a sparse copy of one, open and already
unlinked, so that it vanishes with its last user whatever is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dutyfree.core.errors import DriverError, Unavailable

_MKFS_OPTIONS = ("-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,root_owner=0:0")

_BYTES_PER_FILE = 4096
"""A file takes at least a block, so more inodes than blocks cannot be used (and mkfs refuses them)."""


def scratch_image(templates: Path, size_bytes: int, files: int) -> int:
    """A descriptor of a fresh image with room for so many bytes and files. Blocks; the caller closes it."""
    files = min(files, size_bytes // _BYTES_PER_FILE)
    template = templates / f"{size_bytes}-{files}.ext4"
    if not template.exists():
        _make_template(template, size_bytes, files)
    fd = os.open(templates, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with template.open("rb") as source:
            _copy_sparse(source.fileno(), fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make_template(template: Path, size_bytes: int, files: int) -> None:
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if mkfs is None:
        raise Unavailable("disk storage needs mkfs.ext4", enable="apt-get install e2fsprogs", driver="native")
    template.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=template.parent, prefix=".making-") as directory:
        image = Path(directory) / "image"
        image.touch()
        os.truncate(image, size_bytes)
        done = subprocess.run([mkfs, *_MKFS_OPTIONS, "-N", str(files), image], capture_output=True, check=False)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise DriverError(f"mkfs.ext4 failed: {' '.join(message)}", driver="native", stage="create")
        image.rename(template)


def _copy_sparse(source: int, target: int, size_bytes: int) -> None:
    os.ftruncate(target, size_bytes)
    at = 0
    while at < size_bytes:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        at = os.lseek(source, start, os.SEEK_HOLE)
        while start < at:
            start += os.copy_file_range(source, target, at - start, start, start)
