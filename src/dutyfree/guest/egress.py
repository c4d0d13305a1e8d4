"""The host's end of a sandbox's way out: an HTTP proxy and SOCKS5 on one port inside, carried by the agent's relay.

The sandbox has no network; it has a port on its loopback. Who connects there says where to, in either protocol; here
the name is checked, resolved, its address checked, and that address connected to. What is not allowed hears so. What
the client says is hostile input: bounded in size, time and number.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from dutyfree.core.egress import Egress, host_name, literal
from dutyfree.core.errors import Misuse
from dutyfree.core.pending import finish
from dutyfree.guest.budget import SHARED
from dutyfree.guest.forward import AgentForward, Streams, reach_of
from dutyfree.guest.http import Asked, BadRequest, asked_by_http, body, refusal
from dutyfree.guest.link import Link
from dutyfree.guest.pipe import connected
from dutyfree.guest.resolver import Resolver

PORT: Final = 1080
"""Inside, on loopback."""
MAX_CLIENTS: Final = 256
"""Clients inside at once, those included that only ask."""
MAX_CONNECTIONS: Final = 128
"""To the outside at once; fewer where the owner's descriptors are few (`budget`)."""
_ASK_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 30.0
_PIECE: Final = 64 << 10
_GRANTED, _FULL, _NOT_ALLOWED, _UNREACHABLE, _NO_COMMAND = 0, 1, 2, 4, 7
_CODES: Final = {403: _NOT_ALLOWED, 502: _UNREACHABLE, 503: _FULL}
"""What SOCKS says for a status of HTTP."""


def proxy_env() -> Mapping[str, str]:
    """Variables that tell programs about the proxy. ALL_PROXY is not socks5: some clients would refuse to start."""
    url = f"http://127.0.0.1:{PORT}"
    names = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url) | {"NO_PROXY": "localhost,127.0.0.1,::1"}
    return names | {name.lower(): value for name, value in names.items()}


class Refused(Exception):
    """The policy, or the network, says no; the text is for whoever asked."""

    def __init__(self, why: str, *, status: int) -> None:
        super().__init__(why)
        self.status = status


class EgressForward(AgentForward):
    """A provided port whose connections are answered here. Owns the connections to the outside."""

    _counts = False

    def __init__(self, link: Link, policy: Egress) -> None:
        super().__init__(link)
        self._policy = policy
        self._served: set[asyncio.Task[None]] = set()
        self._resolver = Resolver()
        self._direct: list[AgentForward] = []

    async def open(self) -> None:
        """Listen inside: for what asks the proxy, and at the ports of the owner's loopback that are on the list.

        Programs do not ask a proxy for 127.0.0.1 (`NO_PROXY`): what listens there is their own, as a rule.
        """
        await self.provide(PORT, self._reached)
        for port in self._policy.loopback_ports:
            if port == PORT:
                raise Misuse(f"127.0.0.1:{PORT} is the proxy's own inside; use Sandbox.provide", field="network.allow")
            forward = AgentForward(self._link)
            self._direct.append(forward)
            await forward.provide(port, reach_of(("127.0.0.1", port)))

    async def _close(self) -> None:
        for task in self._served:
            task.cancel()
        for forward in self._direct:
            await forward.close()
        await super()._close()
        while self._served:
            await asyncio.wait(self._served)

    async def _reached(self) -> Streams:
        """Somebody inside has connected: a pair of streams, with us at the other end."""
        if len(self._served) >= MAX_CLIENTS or self._closing is not None:
            raise ConnectionRefusedError
        ours, theirs = connected()
        task = asyncio.ensure_future(self._serve(*ours))
        self._served.add(task)
        task.add_done_callback(self._served.discard)
        return theirs

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            with SHARED.connection(self.connections, MAX_CONNECTIONS) as room:
                out_reader, out_writer = await self._connect(asked.host, asked.port, room=room)
                try:
                    writer.write(_socks_reply(_GRANTED) if socks else asked.granted)
                    out_writer.write(asked.first)
                    await _both_ways(asked, reader, writer, out_reader, out_writer)
                finally:
                    out_writer.close()
        except Refused as why:
            writer.write(_socks_reply(_CODES[why.status]) if socks else refusal(why.status, str(why)))
            await writer.drain()

    async def _connect(self, host: str, port: int, *, room: bool) -> Streams:
        """Connect to an address that was checked, never to a name."""
        if not room:
            raise Refused("this sandbox has as many connections as it may have", status=503)
        address = literal(host)
        name = host_name(host) if address is None else None
        if address is not None:
            found: list[tuple[int, str]] = [(socket.AF_INET6 if address.version == 6 else socket.AF_INET, str(address))]
        elif name is not None and self._policy.allows_name(name, port):
            found = await self._resolve(name, port)
        else:
            raise Refused(f"{host}:{port} is not on the allow-list", status=403)
        allowed = [
            (f, a)
            for f, a in found
            if self._policy.allows_address(ipaddress.ip_address(a), port, named=name is not None)
        ]
        if not allowed:
            why = "its address is a special one and not on the allow-list" if name else "is not on the allow-list"
            raise Refused(f"{host}:{port}: {why}" if name else f"{host}:{port} {why}", status=403)
        return await _connect_any(allowed, port)

    async def _resolve(self, name: str, port: int) -> list[tuple[int, str]]:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                return await self._resolver.resolve(name, port)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise Refused(f"{name} cannot be resolved: {error}", status=502) from error


async def _connect_any(addresses: list[tuple[int, str]], port: int) -> Streams:
    last: Exception = OSError("no address")
    for family, address in addresses[:4]:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(address, port, family=family)
        except (OSError, TimeoutError) as error:
            last = error
    raise Refused(f"{addresses[0][1]}:{port} does not answer: {last}", status=502)


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
    asked: Asked,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    out_reader: asyncio.StreamReader,
    out_writer: asyncio.StreamWriter,
) -> None:
    there = asyncio.ensure_future(_send(asked, reader, out_writer))
    back = asyncio.ensure_future(_copy(out_reader, writer))
    try:
        await asyncio.gather(there, back)
    finally:
        for task in (there, back):
            task.cancel()
        await finish(_over(there, back))


async def _over(*tasks: asyncio.Future[None]) -> None:
    await asyncio.wait(tasks)


async def _send(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for piece in body(asked, reader):
        writer.write(piece)
        await writer.drain()
    while await reader.read(_PIECE):
        pass  # after the request's own body: what would be another request
    if writer.can_write_eof():
        writer.write_eof()


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
