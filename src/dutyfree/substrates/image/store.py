"""Where images lie on disk, and who may delete them when.

    <root>/images/<key>/rootfs      a read-only layer; `image.json` beside it says what it is
    <root>/names/<name>             a symlink: to ../images/<key>, or to `host` (an alias of the host image)
    <root>/paths/<digest>           which image the archive at a path became, so that it is not read again
    <root>/building/<random>        work in progress, locked by its builder
    <root>/trash/<random>           removed, and deleted once nobody holds it

An image appears by one rename and is never changed afterwards, so a crash leaves either all of it or a leftover that
the next builder sweeps. Whoever resolves an image holds a shared flock on its directory until `Store.close` or the
process's death; removal renames first, and deletes only what nobody holds. Knows nothing of what an image contains.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dutyfree.core.errors import Unavailable

ALIAS = "host"
"""What a name's symlink says when it stands for the host image, whatever that is at the time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What is known of a stored image; kept as `image.json`."""

    key: str
    kind: str
    """host · archive · directory · bench: how it was made."""
    made_s: float
    """Unix time at which it was complete."""
    size_bytes: int
    """Bytes of file content."""
    source: str
    """Where it came from, for people."""
    recipe: str = ""
    """Key of what was asked for, where that differs from what came out (`bench`)."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    notes: tuple[str, ...] = ()
    """What was left out or changed on the way in, for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Building:
    """A directory to build in. `lock_fd` may be passed to child processes: while any of them lives, nobody sweeps."""

    path: Path
    lock_fd: int

    @property
    def rootfs(self) -> Path:
        """The layer to be."""
        return self.path / "rootfs"


def locate(environ: Mapping[str, str], uid: int) -> Path:
    """The directory that holds everything: DUTYFREE_HOME, else the system's for root and the user's own for others."""
    if home := environ.get("DUTYFREE_HOME"):
        return Path(home).absolute()
    if uid == 0:
        return Path("/var/lib/dutyfree")
    data = environ.get("XDG_DATA_HOME", "")
    # The XDG specification has relative values ignored.
    return (Path(data) if data.startswith("/") else Path.home() / ".local/share") / "dutyfree"


class Store:
    """The images below one directory. Safe for many threads and processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.memo: dict[str, object] = {}
        """What was resolved already; `image.resolve` owns what is in it."""
        self._held: dict[str, int] = {}
        self._guard = threading.Lock()

    @classmethod
    def default(cls) -> Store:
        """The store of this user on this machine. Touches nothing."""
        return cls(locate(os.environ, os.geteuid()))

    def close(self) -> None:
        """Give up every image held; they may be deleted from now on."""
        with self._guard:
            self.memo.clear()
            while self._held:
                os.close(self._held.popitem()[1])

    # -- images

    def directory(self, key: str) -> Path:
        """Where the image with that key is, or would be."""
        return self.root / "images" / key

    def layer(self, key: str) -> Path:
        """The rootfs of the image with that key."""
        return self.directory(key) / "rootfs"

    def manifest(self, key: str) -> Manifest | None:
        """What is known of the image with that key; None: there is no such image."""
        try:
            content = json.loads((self.directory(key) / "image.json").read_text())
        except FileNotFoundError:
            return None
        content["notes"] = tuple(content["notes"])
        return Manifest(**content)

    def manifests(self) -> list[Manifest]:
        """Every image here, oldest first."""
        with contextlib.suppress(FileNotFoundError):
            found = [self.manifest(entry.name) for entry in os.scandir(self.root / "images")]
            return sorted((m for m in found if m is not None), key=lambda m: m.made_s)
        return []

    def hold(self, key: str) -> bool:
        """Keep the image with that key from being deleted until `close`. False: it is gone already."""
        with self._guard:
            if key in self._held and self._is_current(key, self._held[key]):
                return True
            try:
                fd = os.open(self.directory(key), os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return False
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                current = self._is_current(key, fd)
            except BlockingIOError:
                current = False
            if not current:
                os.close(fd)
                return False
            if (old := self._held.pop(key, None)) is not None:
                os.close(old)
            self._held[key] = fd
            return True

    def _is_current(self, key: str, fd: int) -> bool:
        try:
            there = self.directory(key).stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))

    @contextlib.contextmanager
    def building(self) -> Iterator[Building]:
        """A fresh directory with an empty `rootfs` in it; deleted at the end unless it was published."""
        self._prepare()
        self.sweep()
        path = self.root / "building" / secrets.token_hex(8)
        # The store's lock keeps a sweeper from seeing the directory before it is locked.
        with self._locked():
            path.mkdir(mode=0o711)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            building = Building(path=path, lock_fd=fd)
            building.rootfs.mkdir()
            building.rootfs.chmod(0o755)
            yield building
        finally:
            try:
                delete(path)
            finally:
                os.close(fd)

    def publish(self, building: Building, manifest: Manifest, *, durable: bool = True) -> None:
        """Make what was built the image `manifest.key`, by one rename. If there is one already, that one stays.

        durable: on disk before it is visible, so that not even a power cut leaves half of it.
        """
        note = building.path / "image.json"
        note.write_text(json.dumps(asdict(manifest), indent=1, default=dict) + "\n")
        if durable:
            _sync(building.lock_fd)
        # Released before it is visible: an image is locked by those who use it only.
        with self._locked():
            fcntl.flock(building.lock_fd, fcntl.LOCK_UN)
            # Fails on a directory that is not empty, which is what an image that came first is.
            try:
                building.path.rename(self.directory(manifest.key))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise

    @contextlib.contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        """One holder per `what` at a time, in all processes: so that nobody builds what another is building."""
        self._prepare()
        with self._locked(f"locks/{hashlib.sha256(what.encode()).hexdigest()[:16]}"):
            yield

    # -- names

    def names(self) -> dict[str, str]:
        """Every name given, and the key (or `ALIAS`) it stands for."""
        with contextlib.suppress(FileNotFoundError):
            found = ((entry.name, self.named(entry.name)) for entry in os.scandir(self.root / "names"))
            return {name: key for name, key in sorted(found) if key is not None}
        return {}

    def named(self, name: str) -> str | None:
        """The key (or `ALIAS`) that a name stands for; None: no such name."""
        if "/" in name or name in ("", ".", ".."):
            return None
        try:
            return (self.root / "names" / name).readlink().name
        except FileNotFoundError:
            return None

    def give_name(self, name: str, key: str) -> None:
        """Let a name stand for an image from now on, whatever it stood for before."""
        self._prepare()
        fresh = self.root / "building" / secrets.token_hex(8)
        with self._locked():
            fresh.symlink_to(ALIAS if key == ALIAS else f"../images/{key}")
            fresh.replace(self.root / "names" / name)

    def drop_name(self, name: str) -> None:
        """Forget a name; what it stood for stays."""
        (self.root / "names" / name).unlink(missing_ok=True)

    # -- archives seen before

    def recall(self, path: Path) -> tuple[list[int], str] | None:
        """The stamp and the key that were noted for a path."""
        try:
            noted = json.loads(self._noted(path).read_text())
        except FileNotFoundError:
            return None
        return noted["stamp"], noted["key"]

    def note(self, path: Path, stamp: list[int], key: str) -> None:
        """Note which image the file at a path became, and a stamp by which a changed file is told."""
        self._prepare()
        fresh = self.root / "building" / secrets.token_hex(8)
        with self._locked():
            fresh.write_text(json.dumps({"path": os.fspath(path), "stamp": stamp, "key": key}) + "\n")
            fresh.replace(self._noted(path))

    def _noted(self, path: Path) -> Path:
        return self.root / "paths" / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]

    # -- removal

    def retire(self, key: str, *, only_if_idle: bool = False) -> bool:
        """Take an image away from new users; False if somebody still uses it.

        It is then deleted by the first sweep after the last user ended; with `only_if_idle`, it stays as it is.
        """
        with self._locked():
            try:
                fd = os.open(self.directory(key), os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return True
            try:
                idle = _try_lock(fd)
                if idle or not only_if_idle:
                    self.directory(key).rename(self.root / "trash" / secrets.token_hex(8))
            finally:
                os.close(fd)
        self.sweep()
        return idle

    def sweep(self) -> None:
        """Delete what dead builders left and what was removed, except what a live process still locks."""
        for entry in (*_scan(self.root / "building"), *_scan(self.root / "trash")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with self._locked():
                    if not entry.is_dir(follow_symlinks=False):
                        # Such entries live only under the store's lock: this one's writer died.
                        Path(entry.path).unlink()
                    fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
                    idle = _try_lock(fd)
                try:
                    if idle:
                        delete(Path(entry.path))
                finally:
                    os.close(fd)

    def _prepare(self) -> None:
        try:
            for name in ("images", "names", "paths", "building", "trash", "locks"):
                # Traversable by all and listable by none: layers are reached by path or descriptor, never searched.
                (self.root / name).mkdir(mode=0o711, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"images cannot be kept in {self.root}: {error.strerror}",
                enable="export DUTYFREE_HOME=<a directory of yours>",
                driver="native",
            ) from error

    @contextlib.contextmanager
    def _locked(self, name: str = "lock") -> Iterator[None]:
        fd = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def delete(path: Path) -> None:
    """Delete a tree, directories without any permission for their owner included. Absent is fine."""
    with contextlib.suppress(FileNotFoundError):
        if os.geteuid() != 0:
            for _, names, _, parent in os.fwalk(path):
                for name in names:
                    if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                        os.chmod(name, 0o700, dir_fd=parent)
        shutil.rmtree(path)


def _scan(path: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        return list(entries)
    return []


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync(fd: int) -> None:
    # syncfs: fsync of each of some ten thousand files takes minutes, and Python has no call for the filesystem alone.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        raise OSError(ctypes.get_errno(), "syncfs failed")
