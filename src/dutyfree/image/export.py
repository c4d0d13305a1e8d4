"""Write an image of the store as a tar with owners, modes, links and times. Equal images give equal bytes.

Reading is streamed; nothing is unpacked or held. Devices and sockets are left out, extended attributes too.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Generator, Iterator
from pathlib import Path

from dutyfree.image.resolve import Image
from dutyfree.image.view import View
from dutyfree.tree.pack import content

_PIECE = 1 << 20


def rootfs_tar(image: Image) -> Generator[bytes, None, None]:
    """The image's root as a plain tar, in pieces of about a megabyte, none of them empty. Blocks between them."""
    pending = bytearray()
    for part in _parts(image):
        pending += part
        if len(pending) >= _PIECE:
            yield bytes(pending)
            pending.clear()
    yield bytes(pending) + bytes(2 * tarfile.BLOCKSIZE)


def _parts(image: Image) -> Iterator[bytes]:
    seen: dict[tuple[int, int], str] = {}
    mounted = tuple(target.strip("/") for _, target in image.binds)
    for member, entry in View(image.layers).walk():
        if not any(member.startswith(f"{target}/") for target in mounted):
            yield from _member(entry.path, member, entry.status, seen)
    for source, target in image.binds:
        prefix = target.strip("/")
        if View(image.layers).entry(prefix.split("/")) is None:
            yield _header(source, prefix, source.stat())
        for member, entry in View((source,)).walk():
            yield from _member(entry.path, f"{prefix}/{member}", entry.status, seen)


def _member(path: Path, member: str, status: os.stat_result, seen: dict[tuple[int, int], str]) -> Iterator[bytes]:
    if stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
        yield _header(path, member, status)
    elif stat.S_ISREG(status.st_mode):
        place = status.st_dev, status.st_ino
        if status.st_nlink > 1 and place in seen:
            yield _header(path, member, status, twin=seen[place])
            return
        seen[place] = member
        yield _header(path, member, status)
        with path.open("rb", buffering=0) as file:
            yield from content(file.fileno(), status.st_size, str(path))


def _header(path: Path, member: str, status: os.stat_result, twin: str | None = None) -> bytes:
    info = tarfile.TarInfo(member)
    info.mode = stat.S_IMODE(status.st_mode)
    info.uid, info.gid = status.st_uid, status.st_gid
    info.mtime = int(status.st_mtime)
    if twin is not None:
        info.type, info.linkname = tarfile.LNKTYPE, twin
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    else:
        info.size = status.st_size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
