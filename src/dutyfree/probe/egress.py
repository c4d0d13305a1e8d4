"""Probes 117 and 118: what a sandbox with an allow-list gets from the proxy beyond what the list names."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from dutyfree.core.contract import Substrate
from dutyfree.core.egress import Egress
from dutyfree.probe.scene import need, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_MOST_DESCRIPTORS = 200
_ASKED = 400


@asynccontextmanager
async def _web() -> AsyncIterator[tuple[int, bytearray]]:
    """A web server that keeps its connections for a moment; its port, and all that it was sent."""
    heard = bytearray()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                while data := await reader.read(65536):
                    heard.extend(data)
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        server.close()
        await server.wait_closed()


def _smuggled(port: int, mark: bytes) -> list[tuple[bytes, ...]]:
    """Requests that hide another one from whoever reads only the first."""
    first = f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n".encode()
    post = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\n".encode()
    second = b"GET /" + mark + b" HTTP/1.1\r\nHost: elsewhere.internal\r\n\r\n"
    heads = (
        b"X: 1\rConnection: keep-alive", b"X: 1\r\r\n" + second, b"X: 1\0Connection: keep-alive", b"Connection : keep-alive",
        b"\x0bConnection: keep-alive", b"X: 1\r\n Connection: keep-alive", b"X: 1\x0cConnection: keep-alive", b"nothing",
    )  # fmt: skip
    bodies = (
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"Content-Length: 0\r\nContent-Length: 400\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"Transfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n", b"Content-Length: +0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0;\r" + second + b"\r\n\r\n", b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    )  # fmt: skip
    return [
        (first + b"\r\n", second),
        (first + b"\r\n" + second,),
        *((first + head + b"\r\n\r\n", second) for head in heads),
        *((post + body + second,) for body in bodies),
    ]


async def second_request(substrate: Substrate) -> Verdict:
    """117: a second request, with any Host, behind one that was allowed."""
    need(substrate.capabilities.egress, "no allow-list is offered")
    mark = secrets.token_hex(8).encode()
    async with _web() as (port, heard):
        ways = _smuggled(port, mark)
        async with stage(substrate, Egress(allow=[f"127.0.0.1:{port}"])) as box:
            proxy = int((await box.box.run("echo ${HTTP_PROXY##*:}", timeout_s=30)).stdout)
            requests = ["|".join(piece.hex() for piece in way) for way in ways]
            said = (await box.attempt("ask-proxy", port=proxy, requests=requests, timeout_s=110)).said
        seen = bytes(heard)
    need(bool(said), "the attempt did not report")
    if mark in seen:
        return broke("a second request reached the server")
    return held(f"{len(ways)} ways, no second request") if b"GET / " in seen else broke("nothing was let through")


@asynccontextmanager
async def _holding() -> AsyncIterator[tuple[int, list[int]]]:
    """A server that keeps its connections; its port, and how many descriptors we had besides its own at each visit."""
    counts: list[int] = []
    live: set[object] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        live.add(writer)
        counts.append(len(os.listdir("/proc/self/fd")) - len(live))
        with suppress(OSError):
            await reader.read()
        live.discard(writer)
        writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], counts
    finally:
        server.close()
        await server.wait_closed()


async def descriptors(substrate: Substrate) -> Verdict:
    """118: as many connections through the proxy as it takes, each of which costs its owner descriptors."""
    need(substrate.capabilities.egress, "no allow-list is offered")
    async with _holding() as (port, counts), stage(substrate, Egress(allow=[f"127.0.0.1:{port}"])) as box:
        proxy = int((await box.box.run("echo ${HTTP_PROXY##*:}", timeout_s=30)).stdout)
        before = len(os.listdir("/proc/self/fd"))
        said = (await box.attempt("hoard-proxy", port=proxy, target=port, count=_ASKED)).said
        alive = await box.alive()
    need(bool(said), "the attempt did not report")
    need(bool(counts), "nothing was let through")
    grown = max(counts) - before
    if grown > _MOST_DESCRIPTORS or not alive:
        return broke(
            f"{grown} descriptors of the owner were taken" if alive else "the sandbox does not answer any more"
        )
    return held(f"{said['granted']} of {_ASKED} connections were granted, for {grown} descriptors of the owner")


PROBES = (
    Probe(id=117, name="allow-list-second-request", group="network", run=second_request, harmless=True),
    Probe(id=118, name="allow-list-descriptors", group="network", run=descriptors, harmless=True),
)
