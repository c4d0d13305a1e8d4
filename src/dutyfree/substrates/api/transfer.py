"""Trees in and out by exec: tar streams through the sandbox's own `tar`, never held in memory."""

from __future__ import annotations

import os
import stat as modes
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from dutyfree.core.errors import DriverError, Misuse, Violation
from dutyfree.core.pending import finish
from dutyfree.core.spec import Inside
from dutyfree.driver import script
from dutyfree.driver.exec_call import STDOUT
from dutyfree.driver.exec_command import Runner
from dutyfree.guest.argument import path_bytes, whole
from dutyfree.guest.thread import in_thread
from dutyfree.guest.transfer import local_path
from dutyfree.substrates.api import file
from dutyfree.tree.pack import file_pieces, tree_pieces
from dutyfree.tree.parse import Entry, Untar
from dutyfree.tree.unpack import Unpack


async def upload(runner: Runner, local: Path | str, remote: Inside) -> None:
    """`Sandbox.upload`."""
    source = local_path("local", local)
    target = path_bytes("remote", remote)
    status = await in_thread(os.stat, source)
    if modes.S_ISDIR(status.st_mode):
        wanted, pieces = file.scripted(runner, script.UNTAR, target), tree_pieces(source)
    elif modes.S_ISREG(status.st_mode):
        mode = b"%o" % modes.S_IMODE(status.st_mode)
        wanted, pieces = file.scripted(runner, script.WRITE, target, mode, b"replace"), file_pieces(source)
    else:
        raise Misuse(f"{source} is neither a file nor a directory", field="local")
    outcome = await runner.run(wanted._replace(stdin=_pieces(pieces)), 1 << 16)
    if not outcome.ok:
        raise script.failure(outcome.exit_code or 0, outcome.stderr, str(remote))


async def _pieces(pieces: Generator[bytes, None, None]) -> AsyncGenerator[bytes, None]:
    try:
        while piece := await in_thread(next, pieces, b""):
            yield piece
    finally:
        await in_thread(pieces.close)


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
            self.said = (self.said + data)[-4096:]


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
            self.said = (self.said + data)[-4096:]


async def download(runner: Runner, remote: Inside, local: Path | str, limit_bytes: int) -> None:
    """`Sandbox.download`."""
    raw = path_bytes("remote", remote)
    unpack = Unpack(local_path("local", local), whole("limit_bytes", limit_bytes, 0, 1 << 50))
    try:
        await in_thread(unpack.open)
        found = await file.stat(runner, remote, follow=True)
        if found.kind == "directory":
            await _receive_tree(runner, raw, remote, unpack)
        elif found.kind == "file":
            await _receive_file(
                runner, raw, remote, unpack, Entry("file", (), b"", found.mode, found.size_bytes, found.mtime_ns)
            )
        else:
            raise Misuse(f"{remote} is neither a file nor a directory", field="remote")
        await in_thread(unpack.commit)
    finally:
        await finish(in_thread(unpack.discard))


async def _receive_tree(runner: Runner, raw: bytes, remote: Inside, unpack: Unpack) -> None:
    untar = Untar(unpack)
    tree = _Tree(untar)
    try:
        ended, _ = await runner.carry(file.scripted(runner, script.TAR, raw), tree)
        if ended.exit_code:
            raise script.failure(ended.exit_code, tree.said, str(remote))
        untar.close()
    except Violation as error:
        raise DriverError(f"what came is no archive: {error}", sandbox=runner.sandbox, step="transfer") from error


async def _receive_file(runner: Runner, raw: bytes, remote: Inside, unpack: Unpack, entry: Entry) -> None:
    await in_thread(unpack.begin, entry)
    plain = _Plain(unpack, entry.size)
    ended, _ = await runner.carry(file.scripted(runner, script.READ, raw, b"1", b"%d" % entry.size), plain)
    if ended.exit_code:
        raise script.failure(ended.exit_code, plain.said, str(remote))
    if plain.left:
        raise DriverError(f"{remote} became shorter while it was read", sandbox=runner.sandbox, step="transfer")
    await in_thread(unpack.end)
