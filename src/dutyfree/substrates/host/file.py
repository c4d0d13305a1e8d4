"""The file methods of `host`, on the machine's own files. Blocking: small work is done in place, the rest in threads."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from pathlib import Path

from dutyfree.core.contract import FileInfo
from dutyfree.core.errors import Misuse
from dutyfree.tree.beneath import delete_tree

SMALL_BYTES = 1 << 20
"""Up to here, reading or writing a file in place is quicker than handing it to a thread and back (about 0.1 ms)."""

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def read(path: str, offset: int, length: int | None) -> bytes:
    """A regular file's bytes; a fifo or device is refused, not opened for good."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_regular(fd, path)
        if offset:
            os.lseek(fd, offset, os.SEEK_SET)
        return _exactly(fd, sys.maxsize if length is None else length)
    finally:
        os.close(fd)


def _exactly(fd: int, length: int) -> bytes:
    """Up to `length` bytes. One `read` may give fewer than asked, and a file may grow meanwhile."""
    pieces = []
    while length > 0 and (piece := os.read(fd, min(length, max(4096, os.fstat(fd).st_size + 1)))):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def write(path: str, data: bytes | bytearray | memoryview, mode: int, append: bool) -> None:
    """Create or replace, with the directories above."""
    flags = (
        os.O_WRONLY | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    )
    try:
        fd = os.open(path, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, flags, mode)
    try:
        _check_regular(fd, path)
        os.fchmod(fd, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _check_regular(fd: int, path: str) -> None:
    kind = os.fstat(fd).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, "Not a regular file", path)


def info(name: str, status: os.stat_result) -> FileInfo:
    """A stat result in the contract's words."""
    return FileInfo(
        name=name,
        kind=_KINDS.get(stat.S_IFMT(status.st_mode), "other"),  # type: ignore[arg-type]
        size_bytes=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mtime_ns=status.st_mtime_ns,
    )


def entries(path: str, limit: int) -> list[FileInfo]:
    """A directory's entries by name."""
    found: list[FileInfo] = []
    with os.scandir(path) as scan:
        for entry in scan:
            if len(found) >= limit:
                raise Misuse(f"{path!r} has more than {limit} entries: list a smaller directory", field="limit")
            found.append(info(entry.name, entry.stat(follow_symlinks=False)))
    return sorted(found, key=lambda one: one.name)


def remove(path: str, recursive: bool) -> None:
    """A file, a link or a directory; only with `recursive` one that is not empty."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif recursive:
        delete_tree(path)
    else:
        os.rmdir(path)


def copy_in(local: Path, remote: str) -> None:
    """A file or tree to exactly `remote`, over what is there."""
    os.makedirs(os.path.dirname(remote) or "/", exist_ok=True)
    if local.is_dir():
        shutil.copytree(local, remote, symlinks=True, dirs_exist_ok=True)
    elif local.is_file():
        shutil.copy2(local, remote)
    elif local.exists():
        raise Misuse(f"{local} is neither a file nor a directory", field="local")
    else:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(local))


def copy_out(remote: str, local: Path, limit_bytes: int) -> None:
    """A file or tree to exactly `local`: built beside it and renamed, so a failure leaves nothing."""
    if os.path.lexists(local):
        raise Misuse(f"{local} exists already", field="local")
    part = local.with_name(f".{local.name}.{os.getpid()}.{id(local)}.part")
    left = [limit_bytes]
    try:
        if os.path.isdir(remote):
            _copy_tree(remote, os.path.realpath(remote), part, left)
        else:
            _copy_file(remote, part, left)
        os.rename(part, local)
    except BaseException:
        delete_tree(part) if part.is_dir() else part.unlink(missing_ok=True)
        raise


def _copy_tree(source: str, root: str, target: Path, left: list[int]) -> None:
    target.mkdir()
    with os.scandir(source) as scan:
        for entry in scan:
            if entry.is_symlink():
                if _stays_inside(entry.path, root):
                    os.symlink(os.readlink(entry.path), target / entry.name)
            elif entry.is_dir():
                _copy_tree(entry.path, root, target / entry.name, left)
            elif entry.is_file():
                _copy_file(entry.path, target / entry.name, left)
    os.chmod(target, stat.S_IMODE(os.stat(source).st_mode) | 0o700)


def _copy_file(source: str, target: Path, left: list[int]) -> None:
    status = os.stat(source)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", source)
    left[0] -= status.st_size
    if left[0] < 0:
        raise Misuse("there is more than that to download", field="limit_bytes")
    shutil.copyfile(source, target)
    os.chmod(target, stat.S_IMODE(status.st_mode) & 0o777)


def _stays_inside(link: str, root: str) -> bool:
    """Whether a link's target, followed as text, stays below `root`."""
    text = os.readlink(link)
    if text.startswith("/"):
        return False
    reached = os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(link)), text))
    return reached == root or reached.startswith(root + "/")
