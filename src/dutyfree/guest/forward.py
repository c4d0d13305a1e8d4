"""Forwarded ports: `expose` (a host port to one inside) and `provide` (a port inside to an address of the owner's).

Every connection is a relay: a channel with credits both ways, and two pumps between it and a socket. A forward owns its
server or listener, its relays and their tasks, and ends them in `close`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Final, Self

from dutyfree.core.descriptor import told
from dutyfree.core.errors import Misuse, Violation
from dutyfree.core.home import check_loop, own, seal
from dutyfree.core.pending import finish
from dutyfree.guest.argument import whole
from dutyfree.guest.budget import SHARED
from dutyfree.guest.channel import Call, Channel, Opening
from dutyfree.guest.flow import Credit, Inbox
from dutyfree.guest.link import Link
from dutyfree.guest.reply import check_empty, parse_number
from dutyfree.guest.wire import (
    CONNECT,
    DATA,
    FLAG_END,
    INITIAL_CREDIT,
    LISTEN,
    OPENED,
    U16,
    U64,
    WINDOW,
    connect,
    frame,
)

RELAY_WINDOW: Final = 256 << 10
MAX_RELAYS: Final = 1024
"""Connections at once through one forward; further ones are dropped."""
_PIECE: Final = 64 << 10

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Reach = Callable[[], Awaitable[Streams]]


class Relay(Opening):
    """One forwarded connection's channel."""

    __slots__ = ("credit", "inbox")

    def __init__(self, link: Link, *, opened: bool) -> None:
        super().__init__(link.loop)
        self.inbox = Inbox(link, self, RELAY_WINDOW)
        self.credit = Credit(link, self, INITIAL_CREDIT)
        if opened:
            self.opened.set_result(None)

    def frame(self, kind: int, flags: int, payload: memoryview) -> None:
        """DATA, credits, and the end."""
        if kind == DATA:
            self.inbox.put(0, payload)
            if flags & FLAG_END:
                self.inbox.close()
        elif kind == WINDOW:
            self.credit.grant(parse_number("WINDOW", payload, U64))
        elif kind == OPENED and not self.opened.done():
            check_empty("OPENED", payload)
            self.opened.set_result(None)
        else:
            super().frame(kind, flags, payload)

    def abandon(self) -> None:
        """Nobody reads any more."""
        super().abandon()
        self.inbox.close(discard=True)
        self.credit.close()

    def closed(self) -> None:
        """Wake everybody."""
        self.inbox.close()
        self.credit.close()
        super().closed()


class Listener(Opening):
    """LISTEN: the port inside that accepts."""

    __slots__ = ("_forward", "port")

    def __init__(self, forward: AgentForward, link: Link) -> None:
        super().__init__(link.loop)
        self._forward = forward
        self.port = 0

    def frame(self, kind: int, flags: int, payload: memoryview) -> None:
        """OPENED, once; then only the end."""
        if kind == OPENED and not self.opened.done():
            self.port = parse_number("OPENED", payload, U16)
            self.opened.set_result(None)
        else:
            super().frame(kind, flags, payload)

    def accept(self, number: int) -> Channel:
        """Somebody inside has connected."""
        return self._forward.accepted(number)


class AgentForward:
    """`Forward` over a link."""

    _counts = True
    """Whether a connection made inside takes one of the owner's descriptors."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._listening: socket.socket | None = None
        self._listener: Listener | None = None
        self._reach: Reach | None = None
        self._port = 0
        self._closing: asyncio.Future[None] | None = None
        self.connections: set[object] = set()
        """Of the owner's descriptors, those in use because somebody inside has connected."""
        own(self)

    def disown(self) -> None:
        """In a forked child: the port stays open for the owner, and only as long as the owner wants."""
        if self._listening is not None:
            self._listening.close()
        seal(self)

    @property
    def port(self) -> int:
        """The port that listens."""
        return self._port

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening and drop the connections."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await finish(asyncio.shield(self._closing))

    async def expose(self, port: int) -> None:
        """Listen on the host's loopback."""

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._tasks) >= MAX_RELAYS or self._closing is not None:
                writer.close()
            else:
                self._own(self._inward(port, reader, writer))

        try:
            self._listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        except OSError as error:
            raise told(error, sandbox=self._link.sandbox) from error
        self._server = await asyncio.start_server(connected, sock=self._listening)
        self._port = self._listening.getsockname()[1]

    async def provide(self, port: int, reach: Reach) -> None:
        """Listen inside."""
        self._reach = reach
        listener = self._listener = Listener(self, self._link)
        self._link.open(listener, LISTEN, U16.pack(port))
        await self._link.opened(listener)
        self._port = listener.port

    def accepted(self, number: int) -> Relay:
        """The agent has opened a relay for a connection made inside."""
        if len(self._tasks) > MAX_RELAYS:
            raise Violation("more connections than a forward takes")
        relay = Relay(self._link, opened=True)
        relay.number = number
        self._own(self._outward(relay))
        return relay

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            await self._gone(self._listener)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _gone(self, call: Call) -> None:
        """Take a channel back, and wait until the agent has closed its side."""
        self._link.abandon(call)
        if self._link.has(call):
            await call.gone()

    def _own(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _inward(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection to the host's port goes on to the one inside."""
        relay = Relay(self._link, opened=False)
        try:
            self._link.open(relay, CONNECT, connect(RELAY_WINDOW, port))
            await asyncio.shield(relay.opened)
            await self._pump(relay, reader, writer)
        finally:
            writer.close()
            await self._gone(relay)

    async def _outward(self, relay: Relay) -> None:
        """A connection made inside goes on to the owner's address; refused there, it is closed here."""
        writer: asyncio.StreamWriter | None = None
        try:
            if self._reach is not None:
                with SHARED.connection(self.connections, MAX_RELAYS) if self._counts else nullcontext(True) as room:
                    if not room:
                        raise ConnectionRefusedError
                    reader, writer = await self._reach()
                    self._link.send(frame(relay.number, WINDOW, U64.pack(RELAY_WINDOW)))
                    await self._pump(relay, reader, writer)
                    writer.close()
        except OSError:
            # The owner's service does not answer, or the sandbox has as many connections as it may have: for the client
            # inside this is a connection that is closed at once.
            self._link.abandon(relay)
        finally:
            if writer is not None:
                writer.close()
            await self._gone(relay)

    async def _pump(self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sending = asyncio.ensure_future(self._to_agent(relay, reader, writer.get_extra_info("socket")))
        try:
            while (piece := await relay.inbox.take()) is not None:
                writer.write(piece[1])
                await writer.drain()
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
            if self._link.has(relay) and not relay.abandoned:
                await relay.gone()
        except OSError:
            # The local end has gone; nothing can be relayed any more.
            self._link.abandon(relay)
        finally:
            sending.cancel()
            await finish(_over(sending))

    async def _to_agent(self, relay: Relay, reader: asyncio.StreamReader, local: socket.socket | None) -> None:
        tcp = local is not None and local.family != socket.AF_UNIX
        try:
            while piece := await reader.read(_PIECE):
                if local is not None and tcp:
                    # It lasts for a moment only. Without it who sends in small pieces, as git does, waits 40 ms for our word.
                    local.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                if not await relay.credit.send(DATA, piece):
                    return
            await relay.credit.send(DATA, b"", last_flag=FLAG_END)
        except OSError:
            self._link.abandon(relay)


async def _over(task: asyncio.Future[None]) -> None:
    await asyncio.wait([task])


async def expose(link: Link, port: int) -> AgentForward:
    """`Sandbox.expose`."""
    whole("port", port, 1, 65_535)
    if link.lost is not None:
        raise await link.explain()
    check_loop(link.loop)
    forward = AgentForward(link)
    await forward.expose(port)
    return forward


async def provide(link: Link, port: int, address: str | tuple[str, int]) -> AgentForward:
    """`Sandbox.provide`."""
    whole("port", port, 0, 65_535)
    reach = reach_of(address)
    forward = AgentForward(link)
    ready = False
    try:
        await forward.provide(port, reach)
        ready = True
    finally:
        if not ready:
            await forward.close()
    return forward


def reach_of(address: object) -> Reach:
    """Return the function that connects to the owner's address."""
    if isinstance(address, str) and address and "\0" not in address:
        path = address
        return lambda: asyncio.open_unix_connection(path)
    if isinstance(address, tuple) and len(address) == 2 and isinstance(address[0], str):
        host, port = address[0], whole("address", address[1], 1, 65_535)
        return lambda: asyncio.open_connection(host, port)
    raise Misuse(f"must be (host, port) or the path of a unix socket, not {address!r}", field="address")
