"""Disk-backed scratch space: an ext4 image per sandbox, in a file without a name.

Owns the templates (one empty image per size, sparse, made by mkfs once). A sandbox gets a copy of one, open and already
unlinked, so that it vanishes with its last user whatever is killed. All the blocks of the copy are reserved when it is
made: what a sandbox could write, the store can take.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dutyfree.core.errors import DriverError, Saturated, Unavailable
from dutyfree.image.room import reserve

_MKFS_OPTIONS = ("-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,root_owner=0:0")

_BYTES_PER_FILE = 4096
"""A file takes at least a block, so more inodes than blocks cannot be used (and mkfs refuses them)."""


def scratch_image(templates: Path, size_bytes: int, files: int, *, reserved: bool = True) -> int:
    """A descriptor of a fresh image with room for so many bytes and files. Blocks; the caller closes it.

    The room is the image's own from now on, `Saturated` if there is not enough; not `reserved`: nobody will write to it.
    """
    files = min(files, size_bytes // _BYTES_PER_FILE)
    template = templates / f"{size_bytes}-{files}.ext4"
    templates.mkdir(parents=True, exist_ok=True)
    fd = os.open(templates, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if reserved:
            reserve(fd, size_bytes, templates)
        else:
            os.ftruncate(fd, size_bytes)
        if not template.exists():
            _make_template(template, size_bytes, files)
        with template.open("rb") as source:
            _copy_data(source.fileno(), fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make_template(template: Path, size_bytes: int, files: int) -> None:
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if mkfs is None:
        raise Unavailable("disk storage needs mkfs.ext4", enable="apt-get install e2fsprogs", driver="native")
    with tempfile.TemporaryDirectory(dir=template.parent, prefix=".making-") as directory:
        image = Path(directory) / "image"
        image.touch()
        os.truncate(image, size_bytes)
        done = subprocess.run(
            [mkfs, *_MKFS_OPTIONS, "-N", str(files), image],
            capture_output=True,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
        if done.returncode != 0:
            message = " ".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])
            failure = Saturated if os.strerror(errno.ENOSPC) in message else DriverError
            raise failure(f"mkfs.ext4 failed in {template.parent}: {message}", driver="native", step="create")
        with image.open("rb") as file:
            os.fsync(file.fileno())
        image.rename(template)


def _copy_data(source: int, target: int, size_bytes: int) -> None:
    """Into the blocks that the target has: never by sharing the source's, which a later write would have to replace."""
    at = 0
    while at < size_bytes:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        at = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        while start < at:
            start += os.sendfile(target, source, start, at - start)
