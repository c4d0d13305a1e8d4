"""Upload and download: trees as tar streams, with the local file work in threads and bounded memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final

from dutyfree.core.errors import Misuse, Violation
from dutyfree.core.pending import finish as to_its_end
from dutyfree.core.spec import Inside
from dutyfree.guest.argument import path_bytes, whole
from dutyfree.guest.channel import Call, NumberCall
from dutyfree.guest.file import finish
from dutyfree.guest.flow import Inbox
from dutyfree.guest.link import Link
from dutyfree.guest.thread import in_thread
from dutyfree.guest.wire import DATA, FLAG_END, TAR_IN, TAR_OUT, U64, WRITE, head, optioned, packed, windowed
from dutyfree.guest.wire import write as pack_write
from dutyfree.tree.pack import file_pieces, tree_pieces
from dutyfree.tree.parse import Untar
from dutyfree.tree.unpack import Unpack

DOWNLOAD_WINDOW: Final = 4 << 20
_MAX_LIMIT: Final = 1 << 50


class Arriving(Call):
    """TAR_OUT: pieces of the stream."""

    __slots__ = ("inbox",)

    def __init__(self, link: Link) -> None:
        super().__init__(link.loop)
        self.inbox = Inbox(link, self, DOWNLOAD_WINDOW)

    def frame(self, kind: int, flags: int, payload: memoryview) -> None:
        """DATA, then END."""
        if kind == DATA:
            self.inbox.put(0, payload)
        else:
            super().frame(kind, flags, payload)

    def abandon(self) -> None:
        """Nobody will unpack the rest."""
        super().abandon()
        self.inbox.close(discard=True)

    def closed(self) -> None:
        """Wake the reader too."""
        self.inbox.close()
        super().closed()


async def upload(link: Link, local: Path | str, remote: Inside) -> None:
    """`Sandbox.upload`."""
    source = local_path("local", local)
    target = path_bytes("remote", remote)
    status = await in_thread(os.stat, source)
    call = NumberCall(link.loop, U64)
    if stat.S_ISDIR(status.st_mode):
        link.open(call, TAR_IN, optioned(0, target))
        pieces = tree_pieces(source)
    elif stat.S_ISREG(status.st_mode):
        link.open(call, WRITE, pack_write(0, stat.S_IMODE(status.st_mode), target) + packed(b""))
        pieces = file_pieces(source)
    else:
        raise Misuse(f"{source} is neither a file nor a directory", field="local")
    sent = False
    try:
        await _send(link, call, pieces)
        sent = True
    finally:
        if not sent:
            link.abandon(call)
    await finish(link, call, remote)


async def _send(link: Link, call: Call, pieces: Generator[bytes, None, None]) -> None:
    """Needs no credit, only room in the stream. Stops when the agent has refused."""
    try:
        while not call.over.done():
            piece = await in_thread(next, pieces, b"")
            link.send(head(call.number, DATA, len(piece), 0 if piece else FLAG_END), piece)
            await link.drained()
            if not piece:
                return
    finally:
        await in_thread(pieces.close)


async def download(link: Link, remote: Inside, local: Path | str, limit_bytes: int) -> None:
    """`Sandbox.download`."""
    raw = path_bytes("remote", remote)
    unpack = Unpack(local_path("local", local), whole("limit_bytes", limit_bytes, 0, _MAX_LIMIT))
    try:
        await in_thread(unpack.open)
        await _receive(link, raw, remote, unpack)
        await in_thread(unpack.commit)
    finally:
        await to_its_end(in_thread(unpack.discard))


async def _receive(link: Link, raw: bytes, remote: Inside, unpack: Unpack) -> None:
    call = Arriving(link)
    link.open(call, TAR_OUT, windowed(DOWNLOAD_WINDOW, raw))
    untar = Untar(unpack)
    try:
        while (piece := await call.inbox.take()) is not None:
            await in_thread(untar.feed, piece[1])
        await finish(link, call, remote)
        untar.close()
    except Violation as violation:
        link.violated(str(violation))
        raise await link.explain() from None
    finally:
        link.abandon(call)


def local_path(field: str, value: Path | str) -> Path:
    """A path of this machine."""
    if not isinstance(value, str | os.PathLike):
        raise Misuse(f"must be a path, not {type(value).__name__}", field=field)
    text = os.fspath(value)
    if not text or "\0" in text:
        raise Misuse("must be a path without NUL", field=field)
    return Path(text).absolute()
