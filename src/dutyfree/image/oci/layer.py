"""Unpacks one layer of an OCI image into an overlayfs layer, knowing the layers below it.

What the OCI text and container engines do, without ever leaving the directory: a parent that is a symlink, in this
layer or below, is followed by name inside the image and never by the kernel; a parent the archive does not list gets
the owner and mode it has below; `.wh.` members become whiteouts, where there is something to hide; a hard link may
name a file below. Kept besides what a rootfs keeps: setuid and setgid bits, fifos, `user.*` and `security.capability`
attributes, fractions of seconds. Left out with a note: devices and all other attributes. Refused: `..`, and more than
the caps allow.
"""

from __future__ import annotations

import contextlib
import decimal
import errno
import os
import shutil
import stat
import tarfile
from collections import deque
from pathlib import Path

from dutyfree.core.errors import Unsupported
from dutyfree.image.archive import (
    DIRECTORY,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_TIME_S,
    NEW_FILE,
    Unpacked,
    Unpacker,
    components,
    drain,
    refusal,
)
from dutyfree.image.digest import attributes
from dutyfree.image.stream import Readable
from dutyfree.image.view import Entry, View, make_opaque

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_AUFS = ".wh..wh."
_XATTR = "SCHILY.xattr."
_MAX_LINKS = 40


def unpack_layer(stream: Readable, target: Path, below: View, *, max_bytes: int = MAX_BYTES) -> Unpacked:
    """Unpack a plain tar stream into an empty directory of ours. Blocks; after an error, it is to be deleted."""
    return drain(stream, _unpacker(target, below, max_bytes))


def make_folder(path: str, target: Path, below: View) -> None:
    """A layer with one directory that is missing below, and its parents as they are there."""
    unpacker = _unpacker(target, below, MAX_BYTES)
    try:
        unpacker.add_folder(path)
        unpacker.finish()
    finally:
        unpacker.close()


def _unpacker(target: Path, below: View, max_bytes: int) -> _LayerUnpacker:
    fd = os.open(target, DIRECTORY)
    return _LayerUnpacker(fd, below=below, max_bytes=max_bytes, max_entries=MAX_ENTRIES)


class _LayerUnpacker(Unpacker):
    modes = 0o7777

    def __init__(self, root_fd: int, *, below: View, max_bytes: int, max_entries: int) -> None:
        super().__init__(root_fd, max_bytes=max_bytes, max_entries=max_entries)
        self._below = below
        self._real: tuple[str, ...] = ()
        """Of the directory entered: its place, without symlinks."""
        self._hidden: set[tuple[str, ...]] = set()
        self._opaque: set[tuple[str, ...]] = set()
        if (root := below.entry(())) is not None:
            self._folders[()] = _as_member(root)

    def add(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        *parents, name = self._parts(member.name) or ("",)
        if any(part.startswith(_WHITEOUT) for part in parents):
            raise refusal(member.name, "lies below a whiteout")
        if not name.startswith(_WHITEOUT):
            super().add(member, archive)
            return
        self._count(member)
        try:
            self._enter(tuple(parents))
        except OSError as error:
            raise refusal(member.name, f"hides what cannot be there: {error.strerror}") from error
        if name == _OPAQUE:
            self._opaque.add(self._real)
        elif not name.startswith(_AUFS):
            hidden = name.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise refusal(member.name, "hides nothing that has a name")
            self._hidden.add((*self._real, hidden))

    def add_folder(self, path: str) -> None:
        """A directory nobody described."""
        self._enter(components(path))

    def finish(self) -> None:
        for place in sorted(self._hidden):
            self._hide(place)
        for place in sorted(self._opaque):
            if self._below.entry(place) is not None:
                self._enter(place)
                make_opaque(self._folder_fd)
        super().finish()

    def _parts(self, name: str) -> tuple[str, ...]:
        return components(name)

    def _hide(self, place: tuple[str, ...]) -> None:
        """A whiteout concerns what is below only: what this layer has at that place itself, stays."""
        if self._below.entry(place) is None:
            return
        self._enter(place[:-1])
        try:
            mode = os.stat(place[-1], dir_fd=self._folder_fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            try:
                os.mknod(place[-1], stat.S_IFCHR, 0, dir_fd=self._folder_fd)
            except PermissionError as error:
                raise Unsupported(
                    "this kernel lets only root make whiteouts: import it as root", step="image"
                ) from error
            return
        if stat.S_ISDIR(mode):
            self._opaque.add(place)

    def _enter(self, parts: tuple[str, ...]) -> None:
        if parts == self._folder:
            return
        todo, real, links = deque(parts), list[str](), 0
        fd = os.dup(self._root_fd)
        try:
            while todo:
                part = todo.popleft()
                if part == "..":
                    del real[-1:]
                    fd = self._reopened(fd, real)
                    continue
                link = self._step(fd, (*real, part))
                if link is not None:
                    links += 1
                    _bound(links, _MAX_LINKS)
                    todo.extendleft(reversed([piece for piece in link.split("/") if piece not in ("", ".")]))
                    if link.startswith("/"):
                        real.clear()
                        fd = self._reopened(fd, real)
                    continue
                real.append(part)
                _bound(len(real), MAX_DEPTH)
                deeper = os.open(part, DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = deeper
        except OSError:
            os.close(fd)
            raise
        os.close(self._folder_fd)
        self._folder_fd, self._folder, self._real = fd, parts, tuple(real)

    def _reopened(self, fd: int, real: list[str]) -> int:
        """The directory at a place that was entered before, in exchange for another."""
        fresh = os.dup(self._root_fd)
        try:
            for part in real:
                deeper = os.open(part, DIRECTORY, dir_fd=fresh)
                os.close(fresh)
                fresh = deeper
        except OSError:
            os.close(fresh)
            raise
        os.close(fd)
        return fresh

    def _step(self, fd: int, place: tuple[str, ...]) -> str | None:
        """Make sure that there is a directory at a place whose parent is `fd`; or where the symlink there leads."""
        try:
            mode = os.stat(place[-1], dir_fd=fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            found = self._shown(place)
            if found is not None and stat.S_ISLNK(found.status.st_mode):
                return os.readlink(found.path)
            os.mkdir(place[-1], 0o755, dir_fd=fd)
            self._folders[place] = _as_member(found) if found is not None and found.is_folder else _plain(place)
            return None
        return os.readlink(place[-1], dir_fd=fd) if stat.S_ISLNK(mode) else None

    def _shown(self, place: tuple[str, ...]) -> Entry | None:
        """Find the entry of the layers below, unless this layer has hidden it already."""
        above = [place[:count] for count in range(len(place) + 1)]
        hidden = self._hidden.intersection(above) or self._opaque.intersection(above[:-1])
        return None if hidden else self._below.entry(place)

    def _clear(self, parts: tuple[str, ...]) -> None:
        self._enter(parts[:-1])
        try:
            os.unlink(parts[-1], dir_fd=self._folder_fd)
        except FileNotFoundError:
            return
        # What was here may have been a symlink that the way to the directory entered led through.
        self._folder = ("",)
        self._enter(parts[:-1])

    def _add_folder(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        self._enter(parts[:-1])
        place = (*self._real, parts[-1])
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=self._folder_fd, follow_symlinks=False).st_mode):
                self._clear(parts)
        with contextlib.suppress(FileExistsError):
            os.mkdir(parts[-1], 0o755, dir_fd=self._folder_fd)
        self._folders[place] = member

    def _seek(self, name: str) -> None:
        place = (*self._real, name)
        try:
            os.stat(name, dir_fd=self._folder_fd, follow_symlinks=False)
        except FileNotFoundError:
            found = self._shown(place)
            if found is None or not stat.S_ISREG(found.status.st_mode):
                raise
            self._copy_up(name, found)

    def _copy_up(self, name: str, found: Entry) -> None:
        fd = os.open(name, NEW_FILE, 0o600, dir_fd=self._folder_fd)
        with os.fdopen(fd, "wb") as file, found.path.open("rb") as source:
            self.result.size_bytes += found.status.st_size
            shutil.copyfileobj(source, file)
            file.flush()
            self._finish(fd, _as_member(found))

    def _skip(self, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name)
        if not member.isfifo():
            self.result.skipped["devices or unknown members left out"] += 1
            return
        self._clear(parts)
        os.mkfifo(parts[-1], member.mode & 0o777, dir_fd=self._folder_fd)
        self._own(parts[-1], member)
        os.chmod(parts[-1], member.mode & 0o777, dir_fd=self._folder_fd)

    def _finish(self, fd: int, member: tarfile.TarInfo) -> None:
        super()._finish(fd, member)
        for key, value in member.pax_headers.items():
            if key.startswith(_XATTR):
                self._set(fd, key.removeprefix(_XATTR), value.encode("utf-8", "surrogateescape"))

    def _time_ns(self, member: tarfile.TarInfo) -> int:
        return _time_ns(member)

    def _own(self, name: str, member: tarfile.TarInfo) -> None:
        super()._own(name, member)
        time_ns = _time_ns(member)
        os.utime(name, ns=(time_ns, time_ns), dir_fd=self._folder_fd, follow_symlinks=False)

    def _set(self, fd: int, name: str, value: bytes) -> None:
        # Overlay's own attributes would let a layer say what is below it; other namespaces are the host's to use.
        user = name.startswith("user.") and not name.startswith("user.overlay.")
        if not user and not (name == "security.capability" and self._as_root):
            self.result.skipped["extended attributes of other kinds dropped"] += 1
            return
        try:
            os.setxattr(fd, name, value)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EPERM, errno.EINVAL, errno.ERANGE, errno.E2BIG):
                raise
            self.result.skipped["extended attributes this filesystem does not take"] += 1


def _bound(count: int, limit: int) -> None:
    if count > limit:
        raise OSError(errno.ELOOP, "leads too far")


def _as_member(entry: Entry) -> tarfile.TarInfo:
    """Describe an entry of the layers below as an archive would."""
    member = tarfile.TarInfo()
    member.mode = stat.S_IMODE(entry.status.st_mode)
    member.uid, member.gid = entry.status.st_uid, entry.status.st_gid
    seconds, fraction = divmod(entry.status.st_mtime_ns, 1_000_000_000)
    member.pax_headers = {"mtime": f"{seconds}.{fraction:09d}"}
    for name, value in attributes(os.fspath(entry.path)):
        if not name.startswith(("trusted.", "user.overlay.")):
            member.pax_headers[_XATTR + name] = value.decode("utf-8", "surrogateescape")
    return member


def _plain(place: tuple[str, ...]) -> tarfile.TarInfo:
    member = tarfile.TarInfo("/".join(place))
    member.mode = 0o755
    return member


def _time_ns(member: tarfile.TarInfo) -> int:
    """By text where there is one: a float has no room for nanoseconds."""
    try:
        seconds = decimal.Decimal(member.pax_headers.get("mtime") or member.mtime)
    except (decimal.InvalidOperation, ValueError):
        seconds = decimal.Decimal(0)
    if not seconds.is_finite():
        return 0
    return int(min(max(seconds, decimal.Decimal(0)), decimal.Decimal(MAX_TIME_S)) * 1_000_000_000)
