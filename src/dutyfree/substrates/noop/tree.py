"""`Tree`: files and directories in a dictionary. No links, no owners, no permissions that would be enforced."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.contract import FileInfo
from dutyfree.core.errors import Misuse


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One file, or a directory if it has no data."""

    data: bytes | None
    mode: int
    mtime_ns: int

    def info(self, name: str) -> FileInfo:
        """As the contract tells it."""
        kind = "directory" if self.data is None else "file"
        size = len(self.data or b"")
        return FileInfo(name=name, kind=kind, size_bytes=size, mode=self.mode, uid=0, gid=0, mtime_ns=self.mtime_ns)  # type: ignore[arg-type]


class Tree:
    """A filesystem that only this process sees."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {"/": _directory(0o755)}

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        data = self._node(path).data
        if data is None:
            raise _error(errno.EISDIR, path)
        return data

    def write(self, path: str, data: bytes, mode: int, append: bool) -> None:
        """Create, replace or extend."""
        path = _normal(path)
        old = self._nodes.get(path)
        if old is not None and old.data is None:
            raise _error(errno.EISDIR, path)
        self.mkdir(posixpath.dirname(path), 0o755)
        before = old.data if append and old is not None and old.data is not None else b""
        self._nodes[path] = Node(data=before + data, mode=mode, mtime_ns=time.time_ns())

    def stat(self, path: str) -> FileInfo:
        """Describe the file at a path."""
        return self._node(path).info(posixpath.basename(_normal(path)) or "/")

    def list(self, path: str, limit: int) -> list[FileInfo]:
        """A directory's entries by name."""
        if self._node(path).data is not None:
            raise _error(errno.ENOTDIR, path)
        names = sorted(posixpath.basename(one) for one in self._children(_normal(path)))
        if len(names) > limit:
            raise Misuse(f"{path!r} has more than {limit} entries: list a smaller directory", field="limit")
        return [self._nodes[posixpath.join(_normal(path), name)].info(name) for name in names]

    def mkdir(self, path: str, mode: int) -> None:
        """A directory and those above it."""
        path = _normal(path)
        node = self._nodes.get(path)
        if node is not None:
            if node.data is not None:
                raise _error(errno.ENOTDIR, path)
            return
        self.mkdir(posixpath.dirname(path), 0o755)
        self._nodes[path] = _directory(mode)

    def remove(self, path: str, recursive: bool) -> None:
        """A file, an empty directory, or with `recursive` all below."""
        self._node(path)
        path = _normal(path)
        below = [one for one in self._nodes if one.startswith(path.rstrip("/") + "/") and one != "/"]
        if below and not recursive:
            raise _error(errno.ENOTEMPTY, path)
        for one in (*below, path):
            self._nodes.pop(one, None)

    def rename(self, source: str, target: str) -> None:
        """A file or a tree."""
        self._node(source)
        source, target = _normal(source), _normal(target)
        self._node(posixpath.dirname(target))
        for one in [one for one in self._nodes if one == source or one.startswith(source + "/")]:
            self._nodes[target + one[len(source) :]] = self._nodes.pop(one)

    def copy_in(self, local: Path, path: str) -> None:
        """A local file or tree; links are followed, since there are none here."""
        status = local.stat()
        if stat.S_ISREG(status.st_mode):
            self.write(path, local.read_bytes(), stat.S_IMODE(status.st_mode), append=False)
        elif stat.S_ISDIR(status.st_mode):
            self.mkdir(path, stat.S_IMODE(status.st_mode))
            for child in local.iterdir():
                self.copy_in(child, posixpath.join(path, child.name))
        else:
            raise Misuse(f"{local} is neither a file nor a directory", field="local")

    def copy_out(self, path: str, local: Path, limit_bytes: int) -> None:
        """A file or tree to where nothing is yet."""
        if os.path.lexists(local):
            raise Misuse(f"{local} exists already", field="local")
        root = _normal(path)
        self._node(root)
        chosen = [one for one in sorted(self._nodes) if one == root or one.startswith(root.rstrip("/") + "/")]
        if sum(len(self._nodes[one].data or b"") for one in chosen) > limit_bytes:
            raise Misuse("there is more than that to download", field="limit_bytes")
        for one in chosen:
            node, place = self._nodes[one], local / posixpath.relpath(one, root)
            if node.data is None:
                place.mkdir()
            else:
                place.write_bytes(node.data)
                place.chmod(node.mode & 0o777)

    def _node(self, path: str) -> Node:
        node = self._nodes.get(_normal(path))
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _children(self, path: str) -> Iterable[str]:
        return [one for one in self._nodes if one != "/" and posixpath.dirname(one) == path]


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _directory(mode: int) -> Node:
    return Node(data=None, mode=mode, mtime_ns=time.time_ns())


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
