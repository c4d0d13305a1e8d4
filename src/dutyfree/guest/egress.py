"""The host's end of a sandbox's way out: an HTTP proxy and SOCKS5 on one port inside, carried by the agent's relay.

The sandbox has no network; it has a port on its loopback. Who connects there says where to, in either protocol; here the
name is checked, resolved, its address checked, and that address connected to. What is not allowed hears so. What the client
says is hostile input: bounded in size, time and number.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from dutyfree.core.egress import Egress, host_name, literal
from dutyfree.core.pending import finish
from dutyfree.guest.forward import AgentForward, Streams
from dutyfree.guest.http import Asked, BadRequest, asked_by_http, refusal
from dutyfree.guest.link import Link

PORT: Final = 1080
"""Inside, on loopback."""
MAX_CONNECTIONS: Final = 128
_ASK_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 30.0
_PIECE: Final = 64 << 10
_GRANTED, _NOT_ALLOWED, _UNREACHABLE, _NO_COMMAND = 0, 2, 4, 7


def proxy_env() -> Mapping[str, str]:
    """What tells programs about the proxy. Not socks5 in ALL_PROXY: clients without a SOCKS library refuse to start."""
    url = f"http://127.0.0.1:{PORT}"
    names = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url) | {"NO_PROXY": "localhost,127.0.0.1,::1"}
    return names | {name.lower(): value for name, value in names.items()}


class Refused(Exception):
    """The policy, or the network, says no; the text is for whoever asked."""

    def __init__(self, why: str, *, allowed: bool) -> None:
        super().__init__(why)
        self.allowed = allowed


class EgressForward(AgentForward):
    """A provided port whose connections are answered here. Owns the connections to the outside."""

    def __init__(self, link: Link, policy: Egress) -> None:
        super().__init__(link)
        self._policy = policy
        self._served: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen inside."""
        await self.provide(PORT, self._reached)

    async def _close(self) -> None:
        for task in self._served:
            task.cancel()
        await super()._close()
        while self._served:
            await asyncio.wait(self._served)

    async def _reached(self) -> Streams:
        """Somebody inside has connected: a pair of sockets, with us at the other end."""
        if len(self._served) >= MAX_CONNECTIONS or self._closing is not None:
            raise ConnectionRefusedError
        ours, theirs = socket.socketpair()
        try:
            streams = await asyncio.open_connection(sock=theirs)
            task = asyncio.ensure_future(self._serve(ours))
        except BaseException:
            ours.close()
            theirs.close()
            raise
        self._served.add(task)
        task.add_done_callback(self._served.discard)
        return streams

    async def _serve(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            # The peer may go at any time, and the outside may break: both only end this connection.
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, BadRequest):
                async with asyncio.timeout(_ASK_TIMEOUT_S):
                    first = await reader.readexactly(1)
                    socks = first == b"\x05"
                    asked = await (_asked_by_socks(reader, writer) if socks else asked_by_http(first, reader, writer))
                if asked is not None:
                    await self._answer(asked, reader, writer, socks=socks)
        finally:
            writer.close()

    async def _answer(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, socks: bool
    ) -> None:
        try:
            out_reader, out_writer = await self._connect(asked.host, asked.port)
        except Refused as why:
            code = _UNREACHABLE if why.allowed else _NOT_ALLOWED
            writer.write(_socks_reply(code) if socks else refusal(502 if why.allowed else 403, str(why)))
            await writer.drain()
            return
        try:
            writer.write(_socks_reply(_GRANTED) if socks else asked.granted)
            out_writer.write(asked.first)
            await _both_ways(reader, writer, out_reader, out_writer)
        finally:
            out_writer.close()

    async def _connect(self, host: str, port: int) -> Streams:
        """Connect to an address that was checked, never to a name."""
        address = literal(host)
        name = host_name(host) if address is None else None
        if address is not None:
            found: list[tuple[int, str]] = [(socket.AF_INET6 if address.version == 6 else socket.AF_INET, str(address))]
        elif name is not None and self._policy.allows_name(name, port):
            found = await _resolve(name, port)
        else:
            raise Refused(f"{host}:{port} is not on the allow-list", allowed=False)
        allowed = [
            (f, a)
            for f, a in found
            if self._policy.allows_address(ipaddress.ip_address(a), port, named=name is not None)
        ]
        if not allowed:
            why = "its address is a special one and not on the allow-list" if name else "is not on the allow-list"
            raise Refused(f"{host}:{port}: {why}" if name else f"{host}:{port} {why}", allowed=False)
        return await _connect_any(allowed, port)


async def _resolve(name: str, port: int) -> list[tuple[int, str]]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise Refused(f"{name} cannot be resolved: {error}", allowed=True) from error
    # A scope, as in fe80::1%eth0, would choose an interface of the host.
    return [(family, str(address[0]).partition("%")[0]) for family, _, _, _, address in found]


async def _connect_any(addresses: list[tuple[int, str]], port: int) -> Streams:
    last: Exception = OSError("no address")
    for family, address in addresses[:4]:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(address, port, family=family)
        except (OSError, TimeoutError) as error:
            last = error
    raise Refused(f"{addresses[0][1]}:{port} does not answer: {last}", allowed=True)


async def _asked_by_socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    methods = await reader.readexactly((await reader.readexactly(1))[0])
    if 0 not in methods:
        writer.write(b"\x05\xff")
        return None
    writer.write(b"\x05\x00")
    _, command, _, kind = await reader.readexactly(4)
    if kind == 3:
        host = (await reader.readexactly((await reader.readexactly(1))[0])).decode("ascii", errors="replace")
    elif kind in (1, 4):
        host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16)))
    else:
        return None
    port = int.from_bytes(await reader.readexactly(2), "big")
    if command != 1:
        writer.write(_socks_reply(_NO_COMMAND))
        await writer.drain()
        return None
    return Asked(host=host, port=port)


def _socks_reply(code: int) -> bytes:
    return bytes([5, code, 0, 1, 0, 0, 0, 0, 0, 0])


async def _both_ways(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    out_reader: asyncio.StreamReader,
    out_writer: asyncio.StreamWriter,
) -> None:
    there = asyncio.ensure_future(_copy(reader, out_writer))
    back = asyncio.ensure_future(_copy(out_reader, writer))
    try:
        await asyncio.gather(there, back)
    finally:
        for task in (there, back):
            task.cancel()
        await finish(_over(there, back))


async def _over(*tasks: asyncio.Future[None]) -> None:
    await asyncio.wait(tasks)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def open_egress(link: Link, policy: Egress) -> EgressForward:
    """Give a sandbox its way out."""
    forward = EgressForward(link, policy)
    ready = False
    try:
        await forward.open()
        ready = True
    finally:
        if not ready:
            await forward.close()
    return forward
