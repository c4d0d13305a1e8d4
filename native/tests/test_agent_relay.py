"""Forwarded ports: relays between real sockets inside and frames to the host, on both builds."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from frames import (
    BUILDS,
    END_FLAG,
    INITIAL_CREDIT,
    PATIENCE_S,
    PLENTY,
    Agent,
    Frame,
    Refused,
    Type,
    binary_of,
    packed,
    refusal,
)

AGENT_CHANNEL = 1 << 31
ACCEPT_LIMIT = 512


@pytest.fixture(params=BUILDS)
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    with Agent(binary=binary_of(request.param)) as running:
        yield running


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)
        yield listening


def listen(agent: Agent, port: int = 0) -> tuple[int, int]:
    channel = agent.ask(Type.LISTEN, struct.pack("<H", port))
    opened = agent.receive(channel)
    if opened.type == Type.ERROR:
        raise Refused(opened.payload)
    assert opened.type == Type.OPENED
    return channel, struct.unpack("<H", opened.payload)[0]


def client_of(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def accepted(agent: Agent, listening: int, window: int = PLENTY) -> int:
    frame = agent.receive(kind=Type.ACCEPT)
    assert frame.channel & AGENT_CHANNEL
    assert struct.unpack("<I", frame.payload) == (listening,)
    grant(agent, frame.channel, window)
    return frame.channel


def grant(agent: Agent, channel: int, size: int) -> None:
    if size:
        agent.send(channel, Type.WINDOW, struct.pack("<Q", size))


def connect(agent: Agent, server: socket.socket, window: int = PLENTY) -> tuple[int, socket.socket]:
    port = server.getsockname()[1]
    channel = agent.ask(Type.CONNECT, struct.pack("<QH", window, port) + packed(""))
    inside, _ = server.accept()
    inside.settimeout(PATIENCE_S)
    opened = agent.receive(channel)
    assert (opened.type, opened.payload) == (Type.OPENED, b"")
    return channel, inside


def data_of(agent: Agent, channel: int, size: int) -> bytes:
    got = b""
    while len(got) < size:
        frame = agent.receive(channel)
        if frame.type == Type.WINDOW:
            continue
        assert (frame.type, frame.flags) == (Type.DATA, 0), frame
        got += frame.payload
    return got


def next_but_window(agent: Agent, channel: int) -> Frame:
    while (frame := agent.receive(channel)).type == Type.WINDOW:
        pass
    return frame


def everything(peer: socket.socket) -> bytes:
    got = b""
    while piece := peer.recv(1 << 16):
        got += piece
    return got


# ---- beginning ----


def test_a_connection_inside_is_offered_to_the_host(agent: Agent) -> None:
    listening, port = listen(agent)
    with client_of(port) as client:
        channel = accepted(agent, listening)
        client.sendall(b"question")
        assert data_of(agent, channel, 8) == b"question"
        agent.send(channel, Type.DATA, b"answer", END_FLAG)
        assert everything(client) == b"answer"
        client.shutdown(socket.SHUT_WR)
        end = agent.receive(channel)
        assert (end.type, end.flags, end.payload) == (Type.DATA, END_FLAG, b"")
        assert agent.receive(channel).type == Type.END


def test_the_host_reaches_a_listener_inside(agent: Agent, server: socket.socket) -> None:
    channel, inside = connect(agent, server)
    with inside:
        agent.send(channel, Type.DATA, b"question", END_FLAG)
        assert everything(inside) == b"question"
        inside.sendall(b"answer")
    assert data_of(agent, channel, 6) == b"answer"
    assert agent.receive(channel).flags == END_FLAG
    assert agent.receive(channel).type == Type.END


def test_the_host_reaches_a_unix_socket_inside(agent: Agent, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        channel = agent.ask(Type.CONNECT, struct.pack("<QH", PLENTY, 0) + packed(tmp_path / "s"))
        inside, _ = server.accept()
        with inside:
            assert agent.receive(channel).type == Type.OPENED
            agent.send(channel, Type.DATA, b"ping", END_FLAG)
            assert everything(inside) == b"ping"
            inside.sendall(b"pong")
        assert data_of(agent, channel, 4) == b"pong"
        assert [agent.receive(channel).type for _ in range(2)] == [Type.DATA, Type.END]


def test_only_loopback_listens(agent: Agent) -> None:
    _, port = listen(agent)
    entries = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert [entry[0] for entry in entries if entry[2] == "0A" and entry[0].endswith(f":{port:04X}")] == [
        f"0100007F:{port:04X}"
    ]


def test_a_chosen_port_is_used_and_a_taken_one_refused(agent: Agent, server: socket.socket) -> None:
    refused = refusal(listen, agent, server.getsockname()[1])
    assert (refused.errno, refused.what) == (errno.EADDRINUSE, "port")
    first, port = listen(agent)
    agent.send(first, Type.CANCEL)
    assert agent.result(first) == (b"", b"")
    assert listen(agent, port)[1] == port


def test_nobody_there_is_an_error(agent: Agent, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    channel = agent.ask(Type.CONNECT, struct.pack("<QH", PLENTY, port) + packed(""))
    refused = refusal(agent.result, channel)
    assert (refused.errno, refused.what) == (errno.ECONNREFUSED, "connect")
    for path, number in [
        (tmp_path / "none", errno.ENOENT),
        ("/" + "x" * 200, errno.ENAMETOOLONG),
        ("rel", errno.EINVAL),
    ]:
        channel = agent.ask(Type.CONNECT, struct.pack("<QH", PLENTY, 0) + packed(path))
        assert refusal(agent.result, channel).errno == number
    channel = agent.ask(Type.CONNECT, struct.pack("<QH", PLENTY, 0) + packed(""))
    assert refusal(agent.result, channel).what == "port"


def test_data_sent_before_the_connection_is_open_arrives(agent: Agent, server: socket.socket) -> None:
    port = server.getsockname()[1]
    channel = agent.ask(Type.CONNECT, struct.pack("<QH", PLENTY, port) + packed(""))
    agent.send(channel, Type.DATA, b"early ")
    agent.send(channel, Type.DATA, b"bird", END_FLAG)
    inside, _ = server.accept()
    with inside:
        assert everything(inside) == b"early bird"


# ---- credit ----


@pytest.mark.parametrize("size", [1 << 20, (5 << 20) + 3])
def test_an_echo_comes_back_whole(agent: Agent, server: socket.socket, size: int) -> None:
    content = os.urandom(size)
    channel, inside = connect(agent, server, 100_000)

    def echo() -> None:
        with inside:
            while piece := inside.recv(1 << 16):
                inside.sendall(piece)

    echoing = threading.Thread(target=echo)
    echoing.start()
    got, at, credit, ended = bytearray(), 0, INITIAL_CREDIT, False
    while not ended:
        while credit and at < size:
            piece = content[at : at + min(credit, 30_000)]
            at += len(piece)
            credit -= len(piece)
            agent.send(channel, Type.DATA, piece, END_FLAG if at == size else 0)
        frame = agent.receive(channel)
        if frame.type == Type.WINDOW:
            credit += struct.unpack("<Q", frame.payload)[0]
        else:
            assert frame.type == Type.DATA
            got += frame.payload
            ended = bool(frame.flags)
            grant(agent, channel, len(frame.payload))
    echoing.join()
    assert got == content
    assert next_but_window(agent, channel).type == Type.END


def test_a_client_that_does_not_read_stops_the_host_and_not_the_agent(agent: Agent) -> None:
    listening, port = listen(agent)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    with client:
        client.connect(("127.0.0.1", port))
        channel = accepted(agent, listening)
        sent, credit = 0, INITIAL_CREDIT
        while credit:  # until the agent grants no more: kernel buffers and its own are full
            piece = bytes(min(credit, 65536))
            agent.send(channel, Type.DATA, piece)
            sent += len(piece)
            credit -= len(piece)
            agent.ping()
            for frame in [frame for frame in agent.waiting if frame.channel == channel]:
                agent.waiting.remove(frame)
                assert frame.type == Type.WINDOW
                credit += struct.unpack("<Q", frame.payload)[0]
        agent.send(channel, Type.DATA, b"", END_FLAG)
        assert sent >= INITIAL_CREDIT
        assert len(everything(client)) == sent


def test_more_data_than_credit_ends_the_connection(agent: Agent, server: socket.socket) -> None:
    channel = agent.ask(Type.CONNECT, struct.pack("<QH", PLENTY, server.getsockname()[1]) + packed(""))
    agent.send(channel, Type.DATA, bytes(INITIAL_CREDIT + 1))
    assert agent.receive(0).type == Type.ERROR


def test_a_host_that_does_not_grant_stops_the_client_and_not_the_agent(agent: Agent) -> None:
    listening, port = listen(agent)
    with client_of(port) as client:
        channel = accepted(agent, listening, 1000)
        client.setblocking(False)
        total = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                total += client.send(bytes(65536))
                agent.ping()
        assert sum(len(frame.payload) for frame in agent.waiting if frame.channel == channel) == 1000
        client.shutdown(socket.SHUT_WR)
        got = len(data_of(agent, channel, 1000))
        grant(agent, channel, PLENTY)
        while not (frame := agent.receive(channel)).flags:
            got += len(frame.payload)
        assert got == total


def test_the_end_is_told_without_credit(agent: Agent, server: socket.socket) -> None:
    channel, inside = connect(agent, server, 5)
    inside.sendall(b"12345")
    assert data_of(agent, channel, 5) == b"12345"
    inside.close()
    assert agent.receive(channel).flags == END_FLAG
    second, inside = connect(agent, server, 0)
    inside.close()
    assert agent.receive(second).flags == END_FLAG


# ---- ending ----


def test_each_direction_ends_by_itself(agent: Agent, server: socket.socket) -> None:
    channel, inside = connect(agent, server)
    with inside:
        inside.shutdown(socket.SHUT_WR)
        assert agent.receive(channel).flags == END_FLAG
        for i in range(10):
            agent.send(channel, Type.DATA, b"%d" % i)
        agent.send(channel, Type.DATA, b"", END_FLAG)
        assert everything(inside) == b"0123456789"
    assert agent.receive(channel).type == Type.END


def test_data_after_the_end_is_a_breach(agent: Agent, server: socket.socket) -> None:
    channel, inside = connect(agent, server)
    with inside:
        agent.send(channel, Type.DATA, b"", END_FLAG)
        agent.send(channel, Type.DATA, b"more")
        frame = agent.receive()
        assert (frame.channel, frame.type) == (0, Type.ERROR)


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def test_a_reset_is_an_error(agent: Agent, server: socket.socket) -> None:
    channel, inside = connect(agent, server)
    reset(inside)
    assert refusal(agent.result, channel).errno == errno.ECONNRESET


def test_an_answer_is_delivered_although_the_question_is_not_read(agent: Agent, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        channel = agent.ask(Type.CONNECT, struct.pack("<QH", 0, 0) + packed(tmp_path / "s"))
        inside, _ = server.accept()
        assert agent.receive(channel).type == Type.OPENED
        inside.sendall(b"go away")
        inside.shutdown(socket.SHUT_RD)
        for _ in range(10):  # all of it is granted again: the host can go on until it learns
            agent.send(channel, Type.DATA, bytes(65536))
            agent.receive(channel)
        inside.close()
        grant(agent, channel, PLENTY)
        assert data_of(agent, channel, 7) == b"go away"
        while (frame := agent.receive(channel)).type != Type.ERROR:
            assert frame.type in (Type.WINDOW, Type.DATA)
        assert Refused(frame.payload).errno in (errno.EPIPE, errno.ECONNRESET)


def test_cancel_resets_the_connection(agent: Agent, server: socket.socket) -> None:
    channel, inside = connect(agent, server)
    with inside:
        agent.send(channel, Type.CANCEL)
        assert refusal(agent.result, channel).errno == errno.ECANCELED
        with pytest.raises(ConnectionResetError):
            inside.recv(1)


def test_relays_outlive_their_listener(agent: Agent) -> None:
    listening, port = listen(agent)
    with client_of(port) as client:
        channel = accepted(agent, listening)
        agent.send(listening, Type.CANCEL)
        assert agent.result(listening) == (b"", b"")
        with pytest.raises(ConnectionRefusedError):
            client_of(port)
        client.sendall(b"still here")
        assert data_of(agent, channel, 10) == b"still here"


def test_closing_the_stream_closes_every_relay(server: socket.socket) -> None:
    with Agent(binary=binary_of("build")) as agent:
        _, inside = connect(agent, server)
    with inside:
        assert inside.recv(1) == b""


# ---- many ----


def test_two_hundred_connections_at_once(agent: Agent) -> None:
    listening, port = listen(agent)
    clients = [client_of(port) for _ in range(200)]
    for i, client in enumerate(clients):
        client.sendall(b"%4d" % i)
    channels = {}
    for _ in clients:
        channel = accepted(agent, listening)
        channels[int(data_of(agent, channel, 4))] = channel
    assert len(channels) == 200
    for i, channel in channels.items():
        agent.send(channel, Type.DATA, b"answer %d" % i, END_FLAG)
    for i, client in enumerate(clients):
        with client:
            assert everything(client) == b"answer %d" % i
    for channel in channels.values():
        assert [agent.receive(channel).type for _ in range(2)] == [Type.DATA, Type.END]


def test_without_descriptors_connections_wait_and_the_agent_answers(agent: Agent) -> None:
    listening, port = listen(agent)
    used = [int(name) for name in os.listdir(f"/proc/{agent.process.pid}/fd")]
    limits = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
    free = max(used) + 4 - len(used)
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (max(used) + 4, limits[1]))
    clients = [client_of(port) for _ in range(free + 7)]
    first = [accepted(agent, listening) for _ in range(free)]
    agent.ping()
    assert not [frame for frame in agent.waiting if frame.type == Type.ACCEPT]
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, limits)
    rest = [accepted(agent, listening) for _ in range(7)]
    assert len({*first, *rest}) == free + 7
    for client in clients:
        client.close()


def test_connections_beyond_the_limit_wait_for_a_place(agent: Agent) -> None:
    hard = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    listening, port = listen(agent)
    clients = [client_of(port) for _ in range(ACCEPT_LIMIT + 5)]
    channels = [accepted(agent, listening) for _ in range(ACCEPT_LIMIT)]
    agent.ping()
    assert not [frame for frame in agent.waiting if frame.type == Type.ACCEPT]
    for channel in channels[:5]:
        agent.send(channel, Type.CANCEL)
    more = [accepted(agent, listening) for _ in range(5)]
    assert len({*channels, *more}) == ACCEPT_LIMIT + 5
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("kind", "payload"), [(Type.LISTEN, b""), (Type.LISTEN, b"123"), (Type.CONNECT, b"x"), (Type.CONNECT, bytes(20))]
)
def test_a_malformed_request_ends_the_connection(agent: Agent, kind: Type, payload: bytes) -> None:
    agent.ask(kind, payload)
    frame = agent.receive()
    assert (frame.channel, frame.type) == (0, Type.ERROR)
