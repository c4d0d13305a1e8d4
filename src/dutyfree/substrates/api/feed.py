"""Between an exec call's sockets and the sandbox: input in, with its end; output out, piece by piece."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing, suppress

from dutyfree.substrates.api.execution import Execution, Sink

PIECE = 1 << 18


async def feed(connection: socket.socket, wanted: Execution) -> None:
    """Send a command's input, then its end. Input that nobody reads is no error."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        async with aclosing(wanted.input(PIECE)) as pieces:
            async for piece in pieces:
                await loop.sock_sendall(connection, piece)
        connection.shutdown(socket.SHUT_WR)


async def drain(connection: socket.socket, stream: int, sink: Sink) -> None:
    """Hand a stream on until it ends."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await loop.sock_recv(connection, PIECE):
            await sink.add(stream, data)
