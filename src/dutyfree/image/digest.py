"""Digest of a layer's content: equal for equal trees, different if a single bit differs.

Counts: names, types, modes, owners, sizes, times of change, link targets, device numbers, extended attributes, which
names are one file, and every byte. Does not count: inode numbers, times of reading. Follows no symlink.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A tree, weighed."""

    size_bytes: int
    """Of file content; a file of several names once."""
    entries: int
    digest: str
    """Empty: it was weighed only."""


def measure(root: Path, *, hashed: bool = True) -> Measured:
    """Walk a tree that nobody changes meanwhile. Blocks. Without `hashed`, no file is opened."""
    total = hashlib.sha256(b"tree-1\0")
    size_bytes = entries = 0
    twins: dict[tuple[int, int], str] = {}
    if hashed:
        _add(total, "", os.stat(root), os.fspath(root), "")
    for folder, folders, files, fd in os.fwalk(root):
        folders.sort()
        base = os.path.relpath(folder, root)
        for name in sorted(folders + files):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            member = f"{base}/{name}"
            entries += 1
            twin = ""
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                twin = twins.setdefault((status.st_dev, status.st_ino), member)
            if stat.S_ISREG(status.st_mode) and twin in ("", member):
                size_bytes += status.st_size
            if hashed:
                _add(total, member, status, f"/proc/self/fd/{fd}/{name}", "" if twin == member else twin)
    return Measured(size_bytes=size_bytes, entries=entries, digest=total.hexdigest() if hashed else "")


def _add(total: hashlib._Hash, member: str, status: os.stat_result, path: str, twin: str) -> None:
    kind = stat.S_IFMT(status.st_mode)
    size = 0 if stat.S_ISDIR(kind) else status.st_size
    facts = (status.st_mode, status.st_uid, status.st_gid, size, status.st_mtime_ns, status.st_rdev)
    content = b""
    if twin:
        content = b"twin of " + os.fsencode(twin)
    elif stat.S_ISLNK(kind):
        content = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(kind):
        content = _content(path)
    for part in (os.fsencode(member), repr(facts).encode(), repr(attributes(path)).encode(), content):
        total.update(len(part).to_bytes(8, "big") + part)


def attributes(path: str) -> list[tuple[str, bytes]]:
    """The extended attributes of what lies at a path itself, sorted; none where the filesystem knows none.

    Without those that the machine's security module adds by itself.
    """
    try:
        names = sorted(set(os.listxattr(path, follow_symlinks=False)) - {"security.selinux"})
        return [(name, os.getxattr(path, name, follow_symlinks=False)) for name in names]
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EACCES):
            raise
        return []


def _content(path: str) -> bytes:
    try:
        fd = os.open(path, _OPEN)
    except PermissionError:
        # An ordinary user's own file that not even its owner may read; its size and times are counted.
        return b"unreadable"
    with os.fdopen(fd, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").digest()
