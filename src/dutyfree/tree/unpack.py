"""`Unpack`: members of a hostile tar stream become files below one fresh local directory, and nowhere else.

Every name is resolved one component at a time from a directory descriptor, never through a link; nothing that exists is
opened or replaced. Links are made only if they cannot lead out; set-id bits are dropped; directories stay usable by
their owner, so that what was unpacked can be removed again. Blocking: runs in threads.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from dutyfree.core.errors import Misuse, Violation
from dutyfree.tree.beneath import delete_tree
from dutyfree.tree.parse import Entry

MAX_ENTRIES: Final = 1_000_000
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FRESH: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpack:
    """Builds `local` in a temporary sibling; `commit` renames it into place, `discard` leaves nothing."""

    def __init__(self, local: Path, limit_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self._local = local
        self._limit = self._left = limit_bytes
        self._entries_left = max_entries
        self._work: Path | None = None
        self._root = self._file = -1
        self._parent: tuple[tuple[bytes, ...], int] | None = None
        self._entry: Entry | None = None
        self._single = False

    def open(self) -> None:
        """Make the temporary sibling. `Misuse` if something is at `local` already."""
        if os.path.lexists(self._local):
            raise Misuse(f"{self._local} exists already", field="local")
        self._work = Path(tempfile.mkdtemp(prefix=f".{self._local.name[:64]}.", dir=self._local.parent))
        (self._work / "tree").mkdir(0o755)
        self._root = os.open(self._work / "tree", _DIRECTORY)

    def begin(self, entry: Entry) -> None:
        """A member's header."""
        self._entries_left -= 1
        self._left -= entry.size
        if self._left < 0 or self._entries_left < 0:
            what = f"{self._limit} bytes" if self._left < 0 else "entries than a download takes"
            raise Misuse(f"there is more than {what}", field="limit_bytes")
        if self._single:
            raise Violation("a single file is followed by more")
        self._entry = entry
        try:
            self._make(entry)
        except (FileExistsError, NotADirectoryError) as error:
            raise Violation("a tar member is where another one is already") from error

    def content(self, data: memoryview) -> None:
        """Bytes of the present file."""
        while data:
            data = data[os.write(self._file, data) :]

    def end(self) -> None:
        """The present member is complete."""
        if self._file >= 0 and self._entry is not None:
            _stamp(self._file, self._entry)
            os.close(self._file)
            self._file = -1

    def commit(self) -> None:
        """Put the result where it was asked for. FileExistsError if something has appeared there."""
        if self._single:
            os.link(self._at("file"), self._local, follow_symlinks=False)
        else:
            # Replaces at most an empty directory.
            self._at("tree").rename(self._local)

    def discard(self) -> None:
        """Close everything and remove what has not been committed."""
        for fd in (self._file, self._root, self._parent[1] if self._parent else -1):
            if fd >= 0:
                os.close(fd)
        self._file = self._root = -1
        self._parent = None
        if self._work is not None:
            delete_tree(self._work)

    def _at(self, name: str) -> Path:
        if self._work is None:
            raise RuntimeError("not open")
        return self._work / name

    def _make(self, entry: Entry) -> None:
        if not entry.parts:
            self._make_root(entry)
            return
        parent = self._directory(entry.parts[:-1])
        name = entry.parts[-1]
        if entry.kind == "file":
            self._file = os.open(name, _FRESH, 0o600, dir_fd=parent)
        elif entry.kind == "directory":
            os.mkdir(name, 0o700, dir_fd=parent)
            os.chmod(name, entry.mode | 0o700, dir_fd=parent)
        elif stays_inside(entry.target, len(entry.parts) - 1):
            os.symlink(entry.target, name, dir_fd=parent)

    def _make_root(self, entry: Entry) -> None:
        if entry.kind == "file":
            self._file = os.open(self._at("file"), _FRESH, 0o600)
            self._single = True
        elif entry.kind == "directory":
            os.fchmod(self._root, entry.mode | 0o700)
        else:
            raise Violation("the root of a download is a link")

    def _directory(self, parts: tuple[bytes, ...]) -> int:
        """A descriptor of a directory that an earlier member made; the last one used is kept open."""
        if not parts:
            return self._root
        if self._parent is not None:
            if self._parent[0] == parts:
                return self._parent[1]
            os.close(self._parent[1])
            self._parent = None
        fd = os.dup(self._root)
        for part in parts:
            try:
                below = os.open(part, _DIRECTORY, dir_fd=fd)
            except FileNotFoundError as error:
                raise Violation("a tar member comes before its directory") from error
            finally:
                os.close(fd)
            fd = below
        self._parent = (parts, fd)
        return fd


def stays_inside(target: bytes, depth: int) -> bool:
    """A link `depth` directories deep cannot lead out of the tree.

    `..` may only come first: directories above a link are real, so these steps are what they seem; after a name, which
    may itself be a link, they are not. Then each step goes down, or through a link of which this holds already.
    """
    if not target or len(target) > 4095 or target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    up = 0
    while up < len(parts) and parts[up] == b"..":
        up += 1
    return up <= depth and b".." not in parts[up:]


def _stamp(fd: int, entry: Entry) -> None:
    os.fchmod(fd, entry.mode)
    # Years that the file system cannot hold are cut to those it can.
    os.utime(fd, ns=(max(0, min(entry.mtime_ns, 2**33 * 10**9)),) * 2)
