"""What an HTTP client asks of a proxy: `CONNECT host:port`, or one plain request with an absolute URL.

A plain request is sent on rewritten: its Host is the one that was checked, and the connection ends with it, so that no second
request goes by unchecked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

MAX_HEAD: Final = 64 << 10
_HOP: Final = (b"host", b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"upgrade", b"te")


class BadRequest(ValueError):
    """The client does not speak HTTP to a proxy; it has been told so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Where a client wants to go, what it hears when it may, and what is said there in its name."""

    host: str
    port: int
    granted: bytes = b""
    first: bytes = b""


def refusal(status: int, why: str) -> bytes:
    """An answer that says why."""
    names = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}
    body = f"dutyfree: {why}\n".encode(errors="replace")
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
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            raise ValueError("a line is too long") from error
        head += line if line.endswith(b"\r\n") else line[:-1] + b"\r\n"
        if len(head) > MAX_HEAD:
            raise ValueError("the head is too long")
    return head


def _parse(head: bytes) -> Asked:
    request, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = request.decode("ascii").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise ValueError("the first line is no request")
    method, target, version = words
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
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _HOP]
    if any(line[:1] in b" \t" for line in kept):
        raise ValueError("a header is folded")
    sent = [
        f"{method} {path} {version}".encode(),
        f"Host: {parts.netloc}".encode(),
        *kept,
        b"Connection: close",
        b"",
        b"",
    ]
    return Asked(host=parts.hostname, port=port, first=b"\r\n".join(sent))
