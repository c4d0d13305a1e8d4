"""Ports relayed over the sandbox's own stream, both ways."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from dutyfree.core.contract import Process, Sandbox
from dutyfree.testing.base import Suite, declines

SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    peer, _ = server.accept()
    while data := peer.recv(65536):
        peer.sendall(data.upper())
    peer.close()
"""
CLIENT = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
peer.sendall(sys.stdin.buffer.read())
peer.shutdown(socket.SHUT_WR)
while data := peer.recv(65536):
    sys.stdout.buffer.write(data)
"""
INSIDE_PORT = 8123


async def relays(box: Sandbox) -> None:
    """Go on only if ports can be relayed."""
    if not box.capabilities.forward:
        await declines(lambda: box.expose(INSIDE_PORT))


async def serve_inside(box: Sandbox) -> tuple[Process, int]:
    """A server inside that answers in capitals, and its port."""
    process = await box.start(["python3", "-c", SERVER])
    _, line = await anext(aiter(process))
    return process, int(line)


async def ask(port: int, data: bytes) -> bytes:
    """Send, end, and read all of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def capitals(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The same server, for this side."""
    while data := await reader.read(65536):
        writer.write(data.upper())
        await writer.drain()
    writer.close()


class ForwardSuite(Suite):
    async def test_a_port_inside_can_be_reached_from_here(self) -> None:
        async with self.box() as box:
            await relays(box)
            process, inside = await serve_inside(box)
            async with await box.expose(inside) as forward:
                assert await ask(forward.port, b"hello") == b"HELLO"
            await process.kill()

    async def test_many_connections_are_relayed_whole(self) -> None:
        async with self.box() as box:
            await relays(box)
            process, inside = await serve_inside(box)
            async with await box.expose(inside) as forward:
                answers = [await ask(forward.port, bytes([97 + n]) * 300_000) for n in range(5)]
            await process.kill()
        assert answers == [bytes([65 + n]) * 300_000 for n in range(5)]

    async def test_a_port_nobody_listens_on_closes_the_connection_and_not_the_relay(self) -> None:
        async with self.box() as box:
            await relays(box)
            async with await box.expose(INSIDE_PORT) as forward:
                for _ in range(2):
                    reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
                    with suppress(ConnectionResetError):
                        assert await reader.read() == b""
                    writer.close()
            assert (await box.run(["true"])).ok

    async def test_a_service_of_the_owner_can_be_reached_from_inside(self) -> None:
        async with self.box() as box:
            await relays(box)
            server = await asyncio.start_server(capitals, "127.0.0.1", 0)
            async with server:
                port = server.sockets[0].getsockname()[1]
                async with await box.provide(INSIDE_PORT, ("127.0.0.1", port)) as forward:
                    outcome = await box.run(["python3", "-c", CLIENT, str(forward.port)], stdin=b"x" * 500_000)
        assert outcome.stdout == b"X" * 500_000

    async def test_a_unix_socket_of_the_owner_can_be_reached_from_inside(self, tmp_path: Path) -> None:
        async with self.box() as box:
            await relays(box)
            path = str(tmp_path / "socket")
            server = await asyncio.start_unix_server(capitals, path)
            async with server, await box.provide(INSIDE_PORT, path) as forward:
                outcome = await box.run(["python3", "-c", CLIENT, str(forward.port)], stdin=b"hello")
        assert outcome.stdout == b"HELLO"

    async def test_a_closed_relay_listens_no_more(self) -> None:
        async with self.box() as box:
            await relays(box)
            forward = await box.expose(INSIDE_PORT)
            port = forward.port
            await forward.close()
            await forward.close()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            writer.close()
            raise AssertionError("something still listens")
