"""The directory that everything stored lies in: work in progress, what was removed, and the lock over both.

    <root>/building/<random>        work in progress, locked by its builder
    <root>/trash/<random>           removed, and deleted once nobody holds it
    <root>/downloads/<digest>       what came of a blob so far; a day later nobody comes back for it
    <root>/locks/<digest>           one per thing that only one process may make at a time
    <root>/lock                     held for each change of what is visible: renames and names only, never work

A directory is built under a lock of its own and becomes visible by one rename. Knows nothing of images or layers.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core import fault
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.tree.beneath import delete_tree

_FOLDERS = {
    "images": 0o711,
    "layers": 0o700,
    "names": 0o711,
    "paths": 0o711,
    "building": 0o711,
    "trash": 0o711,
    "downloads": 0o700,
}

STALE_S = 86_400.0
"""How long half a download waits to be continued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Building:
    """A directory to build in. `lock_fd` may be passed to child processes: while any of them lives, nobody sweeps."""

    path: Path
    lock_fd: int

    @property
    def rootfs(self) -> Path:
        """The layer to be: empty, and on the store's filesystem. Another directory may be renamed over it."""
        return self.path / "rootfs"


class Progress:
    """Told how an import goes on, in any thread; here it does nothing. A subclass draws."""

    def expect(self, size_bytes: int) -> None:
        """So many bytes more are to be read, as they are kept elsewhere; none: nobody knows how many."""

    def advance(self, size_bytes: int) -> None:
        """So many were."""


ignore = Progress()


def locate(environ: Mapping[str, str], uid: int) -> Path:
    """The directory that holds everything: DUTYFREE_HOME, else the system's for root and the user's own for others."""
    if home := environ.get("DUTYFREE_HOME"):
        if not home.startswith("/"):
            raise Misuse(f"must be an absolute path, not {home!r}", field="DUTYFREE_HOME")
        return Path(home)
    if uid == 0:
        return Path("/var/lib/dutyfree")
    data = environ.get("XDG_DATA_HOME", "")
    # The XDG specification has relative values ignored.
    return (Path(data) if data.startswith("/") else Path.home() / ".local/share") / "dutyfree"


class StoreRoot:
    """One root directory. Safe for many threads and processes at once."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self._prepared = False

    def prepare(self) -> None:
        """Make what is missing of the root."""
        if self._prepared and self.path.exists():
            return
        try:
            for name, mode in (_FOLDERS | {"locks": 0o711}).items():
                # Traversable by all and listable by none. Layers are for their owner only: a setuid program that
                # somebody else's image brought must not be within reach of this machine's other users.
                (self.path / name).mkdir(mode=mode, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"images cannot be kept in {self.path}: {error.strerror}",
                enable="export DUTYFREE_HOME=<a directory of yours>",
            ) from error
        self._prepared = True

    @contextlib.contextmanager
    def locked(self, name: str = "lock") -> Iterator[None]:
        """Alone among all processes, for changes of what is visible."""
        fd = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        """One holder per `what` at a time, in all processes: so that nobody builds what another is building."""
        self.prepare()
        with self.locked(f"locks/{hashlib.sha256(what.encode()).hexdigest()[:16]}"):
            yield

    @contextlib.contextmanager
    def building(self) -> Iterator[Building]:
        """A fresh directory with an empty `rootfs` in it; deleted at the end unless it was published."""
        self.prepare()
        path = self.fresh()
        # The store's lock keeps a sweeper from seeing the directory before it is locked.
        with self.locked():
            path.mkdir(mode=0o711)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            building = Building(path=path, lock_fd=fd)
            fault.at("dutyfree.store.build")
            building.rootfs.mkdir()
            building.rootfs.chmod(0o755)
            yield building
        finally:
            try:
                delete(path)
            finally:
                os.close(fd)

    def fresh(self) -> Path:
        """A name in `building` that nobody has."""
        return self.path / "building" / secrets.token_hex(8)

    def discard(self, path: Path) -> None:
        """Take a directory from view; a sweep deletes it. Under the lock."""
        path.rename(self.path / "trash" / secrets.token_hex(8))

    def sweep(self) -> None:
        """Delete what dead builders left and what was removed, except what a live process still locks."""
        for entry in scan(self.path / "downloads"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > STALE_S:
                    Path(entry.path).unlink()
        for entry in (*scan(self.path / "building"), *scan(self.path / "trash")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with self.locked():
                    if not entry.is_dir(follow_symlinks=False):
                        # Such entries live only under the store's lock: this one's writer died.
                        Path(entry.path).unlink()
                    fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
                    idle = try_lock(fd)
                try:
                    if idle:
                        fault.at("dutyfree.store.sweep")
                        delete(Path(entry.path))
                finally:
                    os.close(fd)


def delete(path: Path) -> None:
    """Delete a tree. Absent is fine."""
    with contextlib.suppress(FileNotFoundError):
        delete_tree(path)


def scan(path: Path) -> list[os.DirEntry[str]]:
    """A directory's entries; none if it is not there."""
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        return list(entries)
    return []


def try_lock(fd: int) -> bool:
    """Whether nobody else held a lock on it; nobody can from now on."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync(fd: int) -> None:
    """Force a filesystem to disk: fsync of each of some ten thousand files takes minutes."""
    fault.at("dutyfree.store.sync")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        raise OSError(ctypes.get_errno(), "syncfs failed")
