"""`FilesByRun`: files and trees by small `sh` scripts, for a sandbox that can do no more than run commands.

A subclass writes `run` and `destroy`. One whose exec calls stream also writes `_carry`: trees are then never held in
memory. Times are to the second where `find` is busybox's.
"""

from __future__ import annotations

import os
import stat as modes
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Literal

from dutyfree.core.contract import FileInfo, Sandbox, root_of
from dutyfree.core.errors import DriverError, Misuse, Unsupported, Violation
from dutyfree.core.pending import finish
from dutyfree.core.spec import Content, Inside, User
from dutyfree.driver import script
from dutyfree.driver.exec_call import STDERR, STDOUT, CappedStreams, ExecCall, Sink
from dutyfree.driver.exec_command import command_text
from dutyfree.guest.argument import input_bytes, path_bytes, user_bytes, whole
from dutyfree.guest.thread import in_thread
from dutyfree.guest.transfer import local_path
from dutyfree.guest.wire import Bytes
from dutyfree.tree.pack import file_pieces, tree_pieces
from dutyfree.tree.parse import Entry, Untar
from dutyfree.tree.unpack import Unpack

Kind = Literal["file", "directory", "symlink", "other"]

_MOST = 1 << 40
_PIECE = 1 << 18
_COMPLAINT = 4096
_LETTERS: dict[str, Kind] = {"f": "file", "d": "directory", "l": "symlink"}
_FORMATS: dict[int, Kind] = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "symlink"}


class FilesByRun(Sandbox):
    """Needs `sh` with coreutils inside (busybox's will do), and `tar` for trees."""

    async def read(
        self, path: Inside, *, offset: int = 0, length: int | None = None, user: User | None = None
    ) -> bytes:
        """A file's bytes, or a part of them, by `cat`."""
        raw = path_bytes("path", path)
        first = whole("offset", offset, 0, _MOST) + 1
        most = b"" if length is None else b"%d" % whole("length", length, 0, _MOST)
        return await self._perform(script.READ, path, raw, b"%d" % first, most, user=user)

    async def write(
        self, path: Inside, data: Content, *, mode: int = 0o644, append: bool = False, user: User | None = None
    ) -> None:
        """Create or replace a file, by `cat`."""
        raw, content = path_bytes("path", path), input_bytes(data, "data")
        words = raw, b"%o" % whole("mode", mode, 0, 0o7777), b"append" if append else b"replace"
        await self._perform(script.WRITE, path, *words, stdin=content, user=user)

    async def stat(self, path: Inside, *, follow: bool = True, user: User | None = None) -> FileInfo:
        """Describe the file at a path."""
        raw = path_bytes("path", path)
        out = await self._perform(script.STAT, path, raw, b"follow" if follow else b"", user=user)
        mode, uid, gid, size, mtime = out.split()
        bits = int(mode, 16)
        name = str(path).rstrip("/").rpartition("/")[2] or "/"
        return _info(name, _FORMATS.get(modes.S_IFMT(bits), "other"), bits, uid, gid, size, mtime)

    async def list(self, path: Inside, *, limit: int = 100_000, user: User | None = None) -> list[FileInfo]:
        """A directory's entries, by `find`."""
        raw = path_bytes("path", path)
        whole("limit", limit, 1, _MOST)
        records = (await self._perform(script.LIST, path, raw, user=user)).split(b"\0")[:-1]
        if len(records) > limit:
            raise Misuse(f"{path} has more than {limit} entries: list a smaller directory", field="limit")
        return sorted((_record(record) for record in records), key=lambda entry: entry.name)

    async def mkdir(self, path: Inside, *, mode: int = 0o755, user: User | None = None) -> None:
        """Make a directory."""
        raw, bits = path_bytes("path", path), b"%o" % whole("mode", mode, 0, 0o7777)
        await self._perform(script.MKDIR, path, raw, bits, user=user)

    async def remove(self, path: Inside, *, recursive: bool = False, user: User | None = None) -> None:
        """Remove a file or a directory."""
        raw = path_bytes("path", path)
        await self._perform(script.REMOVE, path, raw, b"recursive" if recursive else b"", user=user)

    async def rename(self, source: Inside, target: Inside, *, user: User | None = None) -> None:
        """Rename by `mv`."""
        raw = path_bytes("source", source), path_bytes("target", target)
        await self._perform(script.RENAME, source, *raw, user=user)

    async def upload(self, local: Path | str, remote: Inside) -> None:
        """Copy a local file or tree into the sandbox, by `tar`."""
        source, target = local_path("local", local), path_bytes("remote", remote)
        status = await in_thread(os.stat, source)
        if modes.S_ISDIR(status.st_mode):
            call, pieces = self._owners(script.UNTAR, target), tree_pieces(source)
        elif modes.S_ISREG(status.st_mode):
            mode = b"%o" % modes.S_IMODE(status.st_mode)
            call, pieces = self._owners(script.WRITE, target, mode, b"replace"), file_pieces(source)
        else:
            raise Misuse(f"{source} is neither a file nor a directory", field="local")
        said = CappedStreams(_COMPLAINT)
        code = await self._carry(call._replace(stdin=_pieces(pieces)), said)
        if code:
            raise script.failure(code, said.stderr.kept(), str(remote))

    async def download(self, remote: Inside, local: Path | str, *, limit_bytes: int = 1 << 30) -> None:
        """Copy a file or tree out, by `tar`."""
        raw = path_bytes("remote", remote)
        unpack = Unpack(local_path("local", local), whole("limit_bytes", limit_bytes, 0, _MOST << 10))
        try:
            await in_thread(unpack.open)
            found = await self.stat(remote, user=root_of(self))
            if found.kind == "directory":
                await self._receive_tree(raw, remote, unpack)
            elif found.kind == "file":
                await self._receive_file(raw, remote, unpack, found)
            else:
                raise Misuse(f"{remote} is neither a file nor a directory", field="remote")
            await in_thread(unpack.commit)
        finally:
            await finish(in_thread(unpack.discard))

    async def _receive_tree(self, raw: bytes, remote: Inside, unpack: Unpack) -> None:
        untar = Untar(unpack)
        tree = _Tree(untar)
        try:
            code = await self._carry(self._owners(script.TAR, raw), tree)
            if code:
                raise script.failure(code, tree.said, str(remote))
            untar.close()
        except Violation as error:
            raise DriverError(f"what came is no archive: {error}", sandbox=self.id, step="transfer") from error

    async def _receive_file(self, raw: bytes, remote: Inside, unpack: Unpack, found: FileInfo) -> None:
        await in_thread(unpack.begin, Entry("file", (), b"", found.mode, found.size_bytes, found.mtime_ns))
        plain = _Plain(unpack, found.size_bytes)
        code = await self._carry(self._owners(script.READ, raw, b"1", b"%d" % found.size_bytes), plain)
        if code:
            raise script.failure(code, plain.said, str(remote))
        if plain.left:
            raise DriverError(f"{remote} became shorter while it was read", sandbox=self.id, step="transfer")
        await in_thread(unpack.end)

    async def _perform(
        self, text: str, path: Inside, *words: bytes, stdin: Bytes = b"", user: User | None = None
    ) -> bytes:
        """Run a script; its output, or the OSError its exit code stands for."""
        if user is not None and not self.capabilities.users:
            raise Unsupported("another user is not offered", sandbox=self.id)
        who = user_bytes(user).decode(errors="surrogateescape") or None
        kept = CappedStreams(_MOST)
        code = await self._carry(self._script(text, *words)._replace(stdin=stdin, user=who), kept)
        if code:
            raise script.failure(code, kept.stderr.kept(), str(path))
        return kept.stdout.kept()

    def _script(self, text: str, *words: bytes) -> ExecCall:
        """A script with its arguments."""
        return ExecCall(command_text([b"sh", b"-c", text.encode(), b"sh", *words]))

    def _owners(self, text: str, *words: bytes) -> ExecCall:
        """The same for the sandbox's owner, whom no permission bit stops."""
        return self._script(text, *words)._replace(user=root_of(self))

    async def _carry(self, call: ExecCall, sink: Sink) -> int:
        """Make one exec call, as the sandbox's own user unless it names another; its exit code."""
        async with aclosing(call.input(_PIECE)) as pieces:
            given = b"".join([bytes(piece) async for piece in pieces])
        outcome = await self.run(
            list(call.argv), stdin=given, user=call.user, cwd="/", output_limit_bytes=_MOST
        )  # fmt: skip
        await sink.add(STDOUT, outcome.stdout)
        await sink.add(STDERR, outcome.stderr)
        return outcome.exit_code or 0 if outcome.ending == "exit" else 128 + (outcome.signal or 0)


class _Tree:
    """A tar stream on its way to disk, and what the programs inside complain about."""

    def __init__(self, untar: Untar) -> None:
        self._untar = untar
        self.said = b""

    async def add(self, stream: int, data: bytes) -> None:
        """Unpack it, in a thread."""
        if stream == STDOUT:
            await in_thread(self._untar.feed, data)
        else:
            self.said = (self.said + data)[-_COMPLAINT:]


class _Plain:
    """One file's bytes on their way to disk."""

    def __init__(self, unpack: Unpack, size: int) -> None:
        self._unpack = unpack
        self.left = size
        self.said = b""

    async def add(self, stream: int, data: bytes) -> None:
        """Write it, in a thread; no more than was announced."""
        if stream == STDOUT:
            piece, self.left = data[: self.left], self.left - min(self.left, len(data))
            await in_thread(self._unpack.content, memoryview(piece))
        else:
            self.said = (self.said + data)[-_COMPLAINT:]


async def _pieces(pieces: Generator[bytes, None, None]) -> AsyncGenerator[bytes, None]:
    try:
        while piece := await in_thread(next, pieces, b""):
            yield piece
    finally:
        await in_thread(pieces.close)


def _record(record: bytes) -> FileInfo:
    form, mode, uid, gid, size, mtime, name = record.split(b" ", 6)
    letter = form.decode(errors="replace")
    kind = _LETTERS.get(letter) or (
        _FORMATS.get(modes.S_IFMT(int(letter, 16)), "other") if len(letter) > 1 else "other"
    )
    return _info(name.decode(errors="surrogateescape"), kind, int(mode, 8), uid, gid, size, mtime)


def _info(name: str, kind: Kind, mode: int, uid: bytes, gid: bytes, size: bytes, mtime: bytes) -> FileInfo:
    seconds, _, fraction = mtime.partition(b".")
    mtime_ns = int(seconds) * 10**9 + int(fraction[:9].ljust(9, b"0") or 0)
    return FileInfo(
        name=name, kind=kind, size_bytes=int(size), mode=modes.S_IMODE(mode), uid=int(uid), gid=int(gid),
        mtime_ns=mtime_ns,
    )  # fmt: skip
