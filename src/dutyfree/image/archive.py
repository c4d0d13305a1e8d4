"""Unpacks a rootfs tar that somebody hostile may have written, below one directory and nowhere else.

Every member is made relative to a descriptor of its parent directory, which is reached without following a single
symlink; Python's own extraction filters have let members out more than once. Refused: absolute names, `..`, members
below a symlink, links to what the archive does not hold, overlay whiteouts, and more than the caps allow. Left out with
a note: devices, fifos, setuid and setgid bits, extended attributes. A layer of an OCI image is `oci.layer`'s.
"""

from __future__ import annotations

import contextlib
import errno
import lzma
import os
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree.core import fault
from dutyfree.core.errors import DriverError, Misuse
from dutyfree.image.stream import Bounded, Readable

MAX_BYTES = 64 << 30
MAX_ENTRIES = 4_000_000
MAX_DEPTH = 256
"""Directories within directories: bounded so that deleting the tree again stays bounded too."""

_CHUNK_BYTES = 1 << 20
_MAX_ID = 65_535
_NOBODY = 65_534
MAX_TIME_S = 1 << 33
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@dataclass(kw_only=True, slots=True)
class Unpacked:
    """Result of unpacking an archive."""

    size_bytes: int = 0
    entries: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """How many members lost something, by what they lost."""

    @property
    def notes(self) -> tuple[str, ...]:
        """For people."""
        return tuple(f"{count} {what}" for what, count in sorted(self.skipped.items()))


def unpack(stream: Readable, target: Path, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> Unpacked:
    """Unpack a plain tar stream into an empty directory of ours. Blocks; after an error, the directory is to be deleted.

    Raises Misuse for what is wrong with the archive, DriverError for what is wrong with the disk.
    """
    unpacker = Unpacker(os.open(target, DIRECTORY), max_bytes=max_bytes, max_entries=max_entries)
    return drain(stream, unpacker)


def drain(stream: Readable, unpacker: Unpacker) -> Unpacked:
    """Hand every member to the unpacker, and close it."""
    # Headers, padding and the entries themselves cost space too; a bomb made of these alone is bounded as well.
    bounded = Bounded(stream, max_bytes=unpacker.max_bytes + (unpacker.max_entries << 10))
    try:
        with tarfile.open(fileobj=bounded, mode="r:") as archive:  # type: ignore[call-overload]
            while (member := archive.next()) is not None:
                # tarfile remembers every member; an archive of millions would fill the memory.
                archive.members.clear()
                unpacker.add(member, archive)
        if bounded.last.strip(b"\0"):
            # tarfile takes a damaged header for the end.
            raise tarfile.ReadError("it ends early, or is damaged")
        unpacker.finish()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, RecursionError) as error:
        # Recursion: tarfile calls itself for each of several extended headers in a row.
        raise Misuse(f"not a readable rootfs archive: {error}", field="image") from error
    except OSError as error:
        # Decompressors raise it without a number for bad data.
        if error.errno is None:
            raise Misuse(f"not a readable rootfs archive: {error}", field="image") from error
        raise DriverError(f"cannot unpack: {error}", step="image") from error
    finally:
        unpacker.close()
    return unpacker.result


class Unpacker:
    """Writes members below one directory descriptor."""

    modes = 0o1777
    """The bits that are kept."""

    def __init__(self, root_fd: int, *, max_bytes: int, max_entries: int) -> None:
        self.result = Unpacked()
        self._root_fd = root_fd
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self._as_root = os.geteuid() == 0
        self._folder: tuple[str, ...] = ()
        self._folder_fd = os.dup(root_fd)
        self._folders: dict[tuple[str, ...], tarfile.TarInfo] = {}

    def close(self) -> None:
        """Give up the descriptors."""
        os.close(self._root_fd)
        os.close(self._folder_fd)

    def add(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        """Make one member; Misuse if it must not be, DriverError if the disk fails."""
        parts = self._parts(member.name)
        self._count(member)
        try:
            if not parts:
                self._folders[()] = member
            elif member.isdir():
                self._add_folder(parts, member)
            elif member.isreg():
                self._add_file(parts, member, archive)
            elif member.issym():
                self._clear(parts)
                os.symlink(member.linkname, parts[-1], dir_fd=self._folder_fd)
                self._own(parts[-1], member)
            elif member.islnk():
                self._add_hardlink(parts, member)
            else:
                self._skip(member)
        except OSError as error:
            raise _failure(member.name, error) from error

    def finish(self) -> None:
        """Give directories their modes and times: last, since a read-only one could not be filled."""
        for parts in sorted(self._folders, reverse=True):
            member = self._folders[parts]
            self._enter(parts)
            self._finish(self._folder_fd, member)

    def _parts(self, name: str) -> tuple[str, ...]:
        """The components of a member's name, or a refusal."""
        parts = components(name)
        if name.startswith("/"):
            raise refusal(name, "has an absolute name")
        if any(part.startswith(".wh.") for part in parts):
            raise refusal(name, "is a layer's whiteout; import the image it is of, or `docker export`")
        return parts

    def _count(self, member: tarfile.TarInfo) -> None:
        self.result.entries += 1
        if member.isreg() or member.issparse():
            if member.size < 0:
                raise refusal(member.name, "has a negative size")
            self.result.size_bytes += member.size
        if self.result.size_bytes > self.max_bytes:
            raise refusal(member.name, f"takes the image over the cap of {self.max_bytes} bytes")
        if self.result.entries > self.max_entries:
            raise refusal(member.name, f"takes the image over the cap of {self.max_entries} entries")

    def _enter(self, parts: tuple[str, ...]) -> None:
        """Make `_folder_fd` the directory with those parts, creating what is missing. Follows no symlink."""
        if parts == self._folder:
            return
        fd = os.dup(self._root_fd)
        try:
            for part in parts:
                try:
                    below = os.open(part, DIRECTORY, dir_fd=fd)
                except FileNotFoundError:
                    os.mkdir(part, 0o755, dir_fd=fd)
                    below = os.open(part, DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
        except OSError:
            os.close(fd)
            raise
        os.close(self._folder_fd)
        self._folder_fd, self._folder = fd, parts

    def _clear(self, parts: tuple[str, ...]) -> None:
        """Enter the parent, and remove an earlier member of the same name; a directory stays, and stops us."""
        self._enter(parts[:-1])
        with contextlib.suppress(FileNotFoundError):
            os.unlink(parts[-1], dir_fd=self._folder_fd)

    def _add_folder(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        self._enter(parts)
        self._folders[parts] = member

    def _add_file(self, parts: tuple[str, ...], member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        self._clear(parts)
        fd = os.open(parts[-1], NEW_FILE, 0o600, dir_fd=self._folder_fd)
        try:
            for chunk in _content(member, archive):
                fault.at("dutyfree.store.write")
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            self._finish(fd, member)
        finally:
            os.close(fd)

    def _add_hardlink(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        source = self._parts(member.linkname)
        if not source:
            raise refusal(member.name, "is a hard link to the root")
        self._enter(source[:-1])
        source_fd = os.dup(self._folder_fd)
        try:
            self._seek(source[-1])
            self._clear(parts)
            os.link(source[-1], parts[-1], src_dir_fd=source_fd, dst_dir_fd=self._folder_fd, follow_symlinks=False)
        finally:
            os.close(source_fd)

    def _seek(self, name: str) -> None:
        """Look for the file that a hard link names, in the directory entered."""

    def _skip(self, member: tarfile.TarInfo) -> None:
        if member.ischr() and member.devmajor == 0 and member.devminor == 0:
            raise refusal(member.name, "is an overlay whiteout; import a flattened filesystem (`docker export`)")
        kind = (
            "devices" if member.isdev() and not member.isfifo() else "fifos" if member.isfifo() else "unknown members"
        )
        self.result.skipped[f"{kind} left out"] += 1

    def _finish(self, fd: int, member: tarfile.TarInfo) -> None:
        if member.mode & 0o7777 & ~self.modes:
            self.result.skipped["setuid or setgid bits dropped"] += 1
        if self._as_root:
            os.fchown(fd, *self._owner(member))
        # After the change of owner, which would clear bits.
        os.fchmod(fd, member.mode & self.modes)
        time_ns = self._time_ns(member)
        os.utime(fd, ns=(time_ns, time_ns))

    def _time_ns(self, member: tarfile.TarInfo) -> int:
        return int(min(max(member.mtime, 0), MAX_TIME_S)) * 1_000_000_000

    def _own(self, name: str, member: tarfile.TarInfo) -> None:
        if self._as_root:
            os.chown(name, *self._owner(member), dir_fd=self._folder_fd, follow_symlinks=False)

    def _owner(self, member: tarfile.TarInfo) -> tuple[int, int]:
        """Owners inside a sandbox are 16 bits wide: its user namespace maps no more."""
        if 0 <= member.uid <= _MAX_ID and 0 <= member.gid <= _MAX_ID:
            return member.uid, member.gid
        self.result.skipped["owners beyond 65535 made nobody"] += 1
        return _NOBODY, _NOBODY


def _content(member: tarfile.TarInfo, archive: tarfile.TarFile) -> Iterator[bytes]:
    """Yield a file's content in pieces, straight from the stream: a reader for each small file would cost more."""
    if member.issparse():
        packed = archive.extractfile(member)
        while packed is not None and (chunk := packed.read(_CHUNK_BYTES)):
            yield chunk
        return
    stream = archive.fileobj
    if stream is None:
        raise tarfile.ReadError("it is closed")
    stream.seek(member.offset_data)
    left = member.size
    while left:
        chunk = stream.read(min(left, _CHUNK_BYTES))
        if not chunk:
            raise tarfile.ReadError("it ends within a file")
        left -= len(chunk)
        yield chunk


def components(name: str) -> tuple[str, ...]:
    """The components of a name that stays below where it starts, or a refusal."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise refusal(name, "climbs out with `..`")
    if "\0" in name:
        raise refusal(name, "has a NUL in its name")
    if len(parts) > MAX_DEPTH:
        raise refusal(name, f"lies more than {MAX_DEPTH} directories deep")
    return parts


def refusal(name: str, why: str) -> Misuse:
    """Make the error that names a bad member of an archive."""
    return Misuse(f"archive member {name[:200]!r} {why}", field="image")


def _failure(name: str, error: OSError) -> Misuse | DriverError:
    """Classify an OSError from making a member: a bad archive, or a disk in trouble."""
    if error.errno in _FULL:
        return DriverError(f"cannot unpack {name[:200]!r}: {error.strerror}", step="image")
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return refusal(name, "lies below something that is no directory")
    if error.errno in (errno.EISDIR, errno.EPERM):
        return refusal(name, "would replace a directory")
    if error.errno == errno.ENOENT:
        return refusal(name, "links to nothing in the archive")
    return refusal(name, f"cannot be made: {error.strerror or error}")
