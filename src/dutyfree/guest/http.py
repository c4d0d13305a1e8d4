"""Requests of an HTTP client to a proxy: `CONNECT host:port`, or one plain request with an absolute URL.

A plain request is sent on rewritten: its Host is the one that was checked, and nothing follows its body, so that no
second request goes by unchecked. What two readers could take for two different requests is refused: characters that
some take for a line's end, names of headers that are no names, a body whose length is said twice or not plainly.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

MAX_HEAD: Final = 64 << 10
_HOP: Final = (
    b"host", b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"upgrade", b"te", b"trailer",
)  # fmt: skip
_REQUEST: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) ([\x21-\x7e]+) (HTTP/1\.[01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t\x20-\x7e]*)?\r?\n")
_PIECE: Final = 64 << 10


class BadRequest(ValueError):
    """The client does not speak HTTP to a proxy; it has been told so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Target that a client asks for, the answer if it is allowed, and the bytes to send there first."""

    host: str
    port: int
    granted: bytes = b""
    first: bytes = b""
    length: int | None = None
    """Of the body that follows `first`, -1 if it comes in chunks; None: all that comes is sent on."""


def refusal(status: int, why: str) -> bytes:
    """An answer that says why."""
    names = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway", 503: "Service Unavailable"}
    body = f"egress: {why}\n".encode(errors="replace")
    head = f"HTTP/1.1 {status} {names[status]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


async def asked_by_http(first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
    """Read one request's head; `BadRequest` if it is none."""
    try:
        return _parse(first + await _head(reader))
    except (ValueError, asyncio.IncompleteReadError) as error:
        writer.write(refusal(400, f"not a request to a proxy: {error}"))
        await writer.drain()
        raise BadRequest(str(error)) from error


async def _head(reader: asyncio.StreamReader) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = await _line(reader)
        head += line if line.endswith(b"\r\n") else line[:-1] + b"\r\n"
        if len(head) > MAX_HEAD:
            raise ValueError("the head is too long")
    return head


async def body(asked: Asked, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the bytes that belong to a client's request. Raises `BadRequest` for a malformed chunk."""
    try:
        if asked.length is None:
            while piece := await reader.read(_PIECE):
                yield piece
        elif asked.length >= 0:
            async for piece in _exactly(asked.length, reader):
                yield piece
        else:
            async for piece in _chunks(reader):
                yield piece
    except (ValueError, asyncio.IncompleteReadError) as error:
        raise BadRequest(str(error)) from error


async def _exactly(left: int, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while left and (piece := await reader.read(min(left, _PIECE))):
        left -= len(piece)
        yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Each chunk anew: its size alone in its line, and nothing after the last."""
    while True:
        line = _CHUNK.fullmatch(await _line(reader))
        if line is None:
            raise ValueError("a chunk has no size")
        size = int(line[1], 16)
        yield b"%x\r\n" % size
        async for piece in _exactly(size, reader):
            yield piece
        if size == 0:
            while (await _line(reader)).strip(b"\r\n"):
                pass  # trailers, which few expect, are left out
            yield b"\r\n"
            return
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk is longer than its size")
        yield b"\r\n"


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError("a line is too long") from error


def _parse(head: bytes) -> Asked:
    line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    request = _REQUEST.fullmatch(line)
    if request is None:
        raise ValueError("the first line is no request")
    headers = [_header(line) for line in lines]
    method, target, version = (word.decode("ascii") for word in request.groups())
    parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
    if method != "CONNECT" and (parts.scheme != "http" or not parts.hostname):
        raise ValueError("the target is no http:// URL")
    if not parts.hostname or "@" in parts.netloc:
        raise ValueError("the target names no host")
    port = parts.port if parts.port is not None else 80
    if method == "CONNECT":
        if parts.port is None or parts.path:
            raise ValueError("CONNECT needs host:port")
        return Asked(host=parts.hostname, port=port, granted=b"HTTP/1.1 200 Connection established\r\n\r\n")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    sent = [
        f"{method} {path} {version}".encode(),
        f"Host: {host}:{port}".encode() if parts.port is not None else f"Host: {host}".encode(),
        *(name + b":" + value for name, value in headers if name.lower() not in _HOP),
        b"Connection: close",
        b"",
        b"",
    ]
    length = _length(headers, version)
    return Asked(host=parts.hostname, port=port, first=b"\r\n".join(sent), length=length)


def _header(line: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise ValueError(f"a header is folded, or none: {line[:80]!r}")
    return found[1], found[2]


def _length(headers: list[tuple[bytes, bytes]], version: str) -> int:
    """Length of the body; -1: it comes in chunks."""
    lengths = [value.strip() for name, value in headers if name.lower() == b"content-length"]
    codings = [value.strip().lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise ValueError("the length of the body is said twice")
    if codings:
        if codings != [b"chunked"] or version != "HTTP/1.1":
            raise ValueError("the body comes in an encoding that is not understood")
        return -1
    if lengths and not (lengths[0].isdigit() and len(lengths[0]) < 19):
        raise ValueError("the length of the body is no number")
    return int(lengths[0]) if lengths else 0
