"""Forwarded ports with the real agent, both ways."""

import asyncio
import os
import socket

import pytest

from dutyfree.core.errors import DriverError, SandboxLost

CLIENT = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(sys.stdin.buffer.read())
s.shutdown(socket.SHUT_WR)
while data := s.recv(65536):
    sys.stdout.buffer.write(data)
"""


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def exchange(port, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send():
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        answer = group.create_task(reader.read())
    writer.close()
    return answer.result()


class EchoServer:
    """An echo on the loopback that the agent, too, can reach: in these tests it shares the network."""

    async def __aenter__(self):
        self._tasks = set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _connected(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        await echo(reader, writer)

    async def __aexit__(self, *exc):
        self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=30)


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
async def test_an_exposed_port_carries_bytes_both_ways(agent_box, size):
    data = os.urandom(size)
    async with EchoServer() as server, agent_box() as box, await box.expose(server.port) as forward:
        assert forward.port != server.port
        assert await exchange(forward.port, data) == data


async def test_many_connections_share_an_exposed_port(agent_box):
    async with EchoServer() as server, agent_box() as box, await box.expose(server.port) as forward:
        answers = await asyncio.gather(*(exchange(forward.port, str(i).encode() * 1000) for i in range(40)))
        assert answers == [str(i).encode() * 1000 for i in range(40)]


async def test_a_port_nobody_listens_on_closes_the_connection(agent_box):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with agent_box() as box, await box.expose(unused.getsockname()[1]) as forward:
            try:
                assert await exchange(forward.port, b"x") == b""
            except* ConnectionError:
                pass


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
async def test_a_provided_port_reaches_the_owners_address(agent_box, size):
    data = os.urandom(size)
    async with (
        EchoServer() as server,
        agent_box() as box,
        await box.provide(0, ("127.0.0.1", server.port)) as forward,
    ):
        outcome = await box.run(["python3", "-c", CLIENT, str(forward.port)], stdin=data, timeout_s=60)
        assert outcome.stderr == b""
        assert outcome.stdout == data


async def test_a_provided_port_reaches_a_unix_socket(agent_box, tmp_path):
    done = asyncio.Event()

    async def serve(reader, writer):
        await echo(reader, writer)
        done.set()

    server = await asyncio.start_unix_server(serve, tmp_path / "s")
    async with agent_box() as box, await box.provide(0, str(tmp_path / "s")) as forward:
        assert await exchange(forward.port, b"through") == b"through"
        await done.wait()
    server.close()


async def test_an_owners_address_that_does_not_answer_closes_the_connection(agent_box, tmp_path):
    async with agent_box() as box, await box.provide(0, str(tmp_path / "nobody")) as forward:
        try:
            assert await exchange(forward.port, b"x") == b""
        except* OSError:  # the connection may be gone before all is sent, or before its end is (ENOTCONN)
            pass
        assert (await box.run(["true"])).ok


async def test_a_port_in_use_inside_is_an_error(agent_box):
    async with agent_box() as box, await box.provide(0, ("127.0.0.1", 9)) as forward:
        with pytest.raises(DriverError):
            await box.provide(forward.port, ("127.0.0.1", 9))


async def test_closing_drops_connections_and_frees_the_ports(agent_box):
    async with EchoServer() as server, agent_box() as box:
        forward = await box.expose(server.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        await asyncio.gather(forward.close(), forward.close())
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", forward.port)
        inward = await box.provide(0, ("127.0.0.1", server.port))
        await inward.close()
        assert not box.link.channels
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", inward.port)


async def test_a_slow_reader_stops_the_writer_and_nothing_else(agent_box):
    sent = 0
    over = asyncio.Event()

    async def pour(reader, writer):
        nonlocal sent
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
                sent += 65536
        except ConnectionError:
            over.set()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    async with agent_box() as box, await box.expose(server.sockets[0].getsockname()[1]) as forward:
        _, writer = await asyncio.open_connection("127.0.0.1", forward.port, limit=1024)
        before = -1
        while sent != before or not sent:
            before = sent
            await box.run(["sleep", "0.05"])
        assert sent < 64 << 20
        assert (await box.run(["echo", "on"])).stdout == b"on\n"
        writer.close()
    await over.wait()
    server.close()


async def test_destroying_a_sandbox_ends_its_forwards(agent_box):
    async with EchoServer() as server, agent_box() as box:
        exposed = await box.expose(server.port)
        await box.provide(0, ("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection("127.0.0.1", exposed.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        await box.destroy()
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(SandboxLost):
            await box.expose(server.port)
        with pytest.raises(SandboxLost):
            await box.provide(0, ("127.0.0.1", server.port))


async def test_a_flood_of_accepted_connections_ends_the_link(peer_box, tmp_path):
    async with peer_box() as (box, peer):
        providing = asyncio.ensure_future(box.provide(80, str(tmp_path / "nobody")))
        channel, *_ = await peer.hear()
        await peer.say(channel, 0x43, b"\x50\0")
        assert (await providing).port == 80
        accept = b"".join(
            b"\4\0\0\0" + (0x80000000 + i).to_bytes(4, "little") + b"\x41\0\0\0" + channel.to_bytes(4, "little")
            for i in range(1, 2000)
        )
        await peer.raw(accept)
        await peer.ended()
        assert box.link.lost is not None
        assert "more connections" in box.link.lost
