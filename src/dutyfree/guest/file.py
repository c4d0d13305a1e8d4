"""Files of the sandbox, one at a time: read, write, stat, list, mkdir, remove, rename.

What its file system answers is raised as `OSError`. Refuses to hold more than `READ_LIMIT_BYTES` in memory, whatever
the agent says the file has.
"""

from __future__ import annotations

import asyncio
import posixpath
from dataclasses import replace
from typing import Final

from dutyfree.core.contract import FileInfo
from dutyfree.core.errors import Misuse, Violation
from dutyfree.core.spec import Content, Inside, User
from dutyfree.guest.argument import input_bytes, path_bytes, user_bytes, whole
from dutyfree.guest.channel import Call, NumberCall
from dutyfree.guest.failure import error_for
from dutyfree.guest.gather import Gathered, bytes_of, gather, size_of
from dutyfree.guest.link import Link
from dutyfree.guest.reply import check_listed, parse_entry, parse_number
from dutyfree.guest.wire import (
    DATA,
    FLAG_END,
    LIST,
    MAX_PAYLOAD,
    MKDIR,
    READ,
    REMOVE,
    RENAME,
    STAT,
    U32,
    U64,
    WINDOW,
    WRITE,
    frame,
    head,
    optioned,
    packed,
    windowed,
)
from dutyfree.guest.wire import read as pack_read
from dutyfree.guest.wire import write as pack_write

READ_LIMIT_BYTES: Final = 1 << 30
"""The most `read` returns at once; larger files are read in parts, or downloaded."""
PIECE: Final = 256 << 10
LIST_WINDOW: Final = 1 << 20
_APPEND: Final = 1
_AS: Final = 4
_MAX_OFFSET: Final = (1 << 63) - 1


class Reading(Call):
    """READ: the bytes so far."""

    __slots__ = ("_limit", "data", "size")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        super().__init__(loop)
        self._limit = limit
        self.data: Gathered = b""
        self.size = 0

    def frame(self, kind: int, flags: int, payload: memoryview) -> None:
        """DATA up to the limit, then END."""
        if kind != DATA:
            super().frame(kind, flags, payload)
            return
        if self.abandoned:
            return
        if size_of(self.data) + len(payload) > self._limit:
            raise Violation("more of a file than was asked for")
        self.data = gather(self.data, payload)

    def end(self, payload: memoryview) -> None:
        """The file's size."""
        self.size = parse_number("END", payload, U64)

    def abandon(self) -> None:
        """Free what has come."""
        super().abandon()
        self.data = b""


class Listing(Call):
    """LIST: the entries so far."""

    __slots__ = ("_limit", "_link", "entries", "over_limit")

    def __init__(self, link: Link, limit: int) -> None:
        super().__init__(link.loop)
        self._link = link
        self._limit = limit
        self.entries: list[FileInfo] = []
        self.over_limit = False

    def frame(self, kind: int, flags: int, payload: memoryview) -> None:
        """DATA of whole entries; taken at once, so the credit goes back at once."""
        if kind != DATA:
            super().frame(kind, flags, payload)
            return
        if self.abandoned:
            return
        at = 0
        while at < len(payload) and not self.over_limit:
            info, at = parse_entry(payload, at)
            self.entries.append(check_listed(info))
            self.over_limit = len(self.entries) > self._limit
        if self.over_limit:
            self.closed()
        else:
            self._link.send(frame(self.number, WINDOW, U64.pack(len(payload))))


class Status(Call):
    """STAT."""

    __slots__ = ("info",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.info: FileInfo | None = None

    def end(self, payload: memoryview) -> None:
        """Exactly one entry."""
        self.info, at = parse_entry(payload, 0)
        if at != len(payload):
            raise Violation("STAT answers with more than one entry")


def ending(user: User | None) -> bytes:
    """Pack whose rights a request has; nothing for the agent's own."""
    return b"" if user is None else packed(user_bytes(user))


async def finish(link: Link, call: Call, path: Inside) -> None:
    """Wait for the answer; `OSError` about `path` if it is a refusal."""
    await link.finished(call)
    if call.failure is not None:
        raise error_for(call.failure, sandbox=link.sandbox, path=str(path))


async def read(
    link: Link,
    path: Inside,
    offset: int,
    length: int | None,
    limit: int = READ_LIMIT_BYTES,
    user: User | None = None,
) -> bytes:
    """`Sandbox.read`."""
    raw = path_bytes("path", path)
    who = ending(user)
    whole("offset", offset, 0, _MAX_OFFSET)
    most = limit if length is None else whole("length", length, 0, limit)
    # One byte more than may come: if it does come, the file was too large, and not the agent at fault.
    spare = 1 if length is None else 0
    call = Reading(link.loop, most + spare)
    link.open(call, READ, pack_read(offset, most + spare, most + spare, raw) + who)
    await finish(link, call, path)
    if size_of(call.data) > most:
        raise Misuse(
            f"has more than {limit} bytes; read it in parts, or download it", field="path", sandbox=link.sandbox
        )
    return bytes_of(call.data)


async def write(link: Link, path: Inside, data: Content, mode: int, append: bool, user: User | None = None) -> None:
    """`Sandbox.write`."""
    raw = path_bytes("path", path)
    body = input_bytes(data, "data")
    whole("mode", mode, 0, 0o7777)
    call = NumberCall(link.loop, U64)
    options = (_APPEND if append else 0) | (0 if user is None else _AS)
    start = pack_write(options, mode, raw) + ending(user)
    if len(body) <= PIECE:
        link.open(call, WRITE, start + U32.pack(len(body)), body, FLAG_END)
    else:
        link.open(call, WRITE, start + U32.pack(0))
        await _send_pieces(link, call, memoryview(body))
    await finish(link, call, path)
    if call.value != len(body):
        link.violated(f"it wrote {call.value} bytes of {len(body)}")
        raise await link.explain()


async def _send_pieces(link: Link, call: Call, rest: memoryview) -> None:
    """An upload needs no credit, only room in the stream. Stops when the agent has refused."""
    try:
        while rest and not call.over.done():
            piece, rest = rest[:MAX_PAYLOAD], rest[MAX_PAYLOAD:]
            link.send(head(call.number, DATA, len(piece), 0 if rest else FLAG_END), piece)
            await link.drained()
    except asyncio.CancelledError:
        link.abandon(call)
        raise


async def stat(link: Link, path: Inside, follow: bool, user: User | None = None) -> FileInfo:
    """`Sandbox.stat`. The name is the caller's own, not what the agent answers."""
    call = Status(link.loop)
    link.open(call, STAT, optioned(1 if follow else 0, path_bytes("path", path)) + ending(user))
    await finish(link, call, path)
    if call.info is None:
        raise await link.explain()
    return replace(call.info, name=posixpath.basename(posixpath.normpath(path)) or "/")


async def list_directory(link: Link, path: Inside, limit: int, user: User | None = None) -> list[FileInfo]:
    """`Sandbox.list`."""
    call = Listing(link, whole("limit", limit, 0, 10_000_000))
    link.open(call, LIST, windowed(LIST_WINDOW, path_bytes("path", path)) + ending(user))
    try:
        await call.over
    finally:
        link.abandon(call)
    if call.over_limit:
        raise Misuse(f"{path} has more than {limit} entries; list a smaller directory", field="limit")
    await finish(link, call, path)
    return sorted(call.entries, key=lambda info: info.name)


async def mkdir(link: Link, path: Inside, mode: int, user: User | None = None) -> None:
    """`Sandbox.mkdir`."""
    raw = path_bytes("path", path)
    await _simple(link, MKDIR, optioned(whole("mode", mode, 0, 0o7777), raw) + ending(user), path)


async def remove(link: Link, path: Inside, recursive: bool, user: User | None = None) -> None:
    """`Sandbox.remove`."""
    await _simple(link, REMOVE, optioned(1 if recursive else 0, path_bytes("path", path)) + ending(user), path)


async def rename(link: Link, source: Inside, target: Inside, user: User | None = None) -> None:
    """`Sandbox.rename`."""
    payload = packed(path_bytes("source", source)) + packed(path_bytes("target", target))
    await _simple(link, RENAME, payload + ending(user), source)


async def _simple(link: Link, kind: int, payload: bytes, path: Inside) -> None:
    call = Call(link.loop)
    link.open(call, kind, payload)
    await finish(link, call, path)


__all__ = ["list_directory", "mkdir", "read", "remove", "rename", "stat", "write"]
