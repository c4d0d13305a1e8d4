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
from frames import END_FLAG, INITIAL_CREDIT, PLENTY, Frame, Refused, Type, pack_bytes
from peer import PATIENCE_S, Peer, refusal

AGENT_CHANNEL = 1 << 31
ACCEPT_LIMIT = 512


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)
        yield listening


def listen(peer: Peer, port: int = 0) -> tuple[int, int]:
    channel = peer.ask(Type.LISTEN, struct.pack("<H", port))
    return channel, struct.unpack("<H", peer.opened(channel))[0]


def client_of(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def accepted(peer: Peer, listening: int, window: int = PLENTY) -> int:
    frame = peer.receive(kind=Type.ACCEPT)
    assert frame.channel & AGENT_CHANNEL
    assert struct.unpack("<I", frame.payload) == (listening,)
    peer.grant(frame.channel, window)
    return frame.channel


def connect(peer: Peer, server: socket.socket, window: int = PLENTY) -> tuple[int, socket.socket]:
    port = server.getsockname()[1]
    channel = peer.ask(Type.CONNECT, struct.pack("<QH", window, port) + pack_bytes(""))
    inside, _ = server.accept()
    inside.settimeout(PATIENCE_S)
    assert peer.opened(channel) == b""
    return channel, inside


def data_of(peer: Peer, channel: int, size: int) -> bytes:
    got = b""
    while len(got) < size:
        frame = peer.receive(channel)
        if frame.type == Type.WINDOW:
            continue
        assert (frame.type, frame.flags) == (Type.DATA, 0), frame
        got += frame.payload
    return got


def next_but_window(peer: Peer, channel: int) -> Frame:
    while (frame := peer.receive(channel)).type == Type.WINDOW:
        pass
    return frame


def everything(connection: socket.socket) -> bytes:
    got = b""
    while piece := connection.recv(1 << 16):
        got += piece
    return got


# ---- beginning ----


def test_a_connection_inside_is_offered_to_the_host(peer: Peer) -> None:
    listening, port = listen(peer)
    with client_of(port) as client:
        channel = accepted(peer, listening)
        client.sendall(b"question")
        assert data_of(peer, channel, 8) == b"question"
        peer.send(channel, Type.DATA, b"answer", END_FLAG)
        assert everything(client) == b"answer"
        client.shutdown(socket.SHUT_WR)
        end = peer.receive(channel)
        assert (end.type, end.flags, end.payload) == (Type.DATA, END_FLAG, b"")
        assert peer.receive(channel).type == Type.END


def test_the_host_reaches_a_listener_inside(peer: Peer, server: socket.socket) -> None:
    channel, inside = connect(peer, server)
    with inside:
        peer.send(channel, Type.DATA, b"question", END_FLAG)
        assert everything(inside) == b"question"
        inside.sendall(b"answer")
    assert data_of(peer, channel, 6) == b"answer"
    assert peer.receive(channel).flags == END_FLAG
    assert peer.receive(channel).type == Type.END


def test_the_host_reaches_a_unix_socket_inside(peer: Peer, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        channel = peer.ask(Type.CONNECT, struct.pack("<QH", PLENTY, 0) + pack_bytes(tmp_path / "s"))
        inside, _ = server.accept()
        with inside:
            assert peer.opened(channel) == b""
            peer.send(channel, Type.DATA, b"ping", END_FLAG)
            assert everything(inside) == b"ping"
            inside.sendall(b"pong")
        assert data_of(peer, channel, 4) == b"pong"
        assert [peer.receive(channel).type for _ in range(2)] == [Type.DATA, Type.END]


def test_only_loopback_listens(peer: Peer) -> None:
    _, port = listen(peer)
    entries = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # A set: while other sockets come and go, the table may show one twice.
    found = {entry[0] for entry in entries if entry[2] == "0A" and entry[0].endswith(f":{port:04X}")}
    assert found == {f"0100007F:{port:04X}"}


def test_a_chosen_port_is_used_and_a_taken_one_refused(peer: Peer, server: socket.socket) -> None:
    refused = refusal(listen, peer, server.getsockname()[1])
    assert (refused.errno, refused.what) == (errno.EADDRINUSE, "port")
    first, port = listen(peer)
    peer.send(first, Type.CANCEL)
    assert peer.result(first) == (b"", b"")
    assert listen(peer, port)[1] == port


def test_nobody_there_is_an_error(peer: Peer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    channel = peer.ask(Type.CONNECT, struct.pack("<QH", PLENTY, port) + pack_bytes(""))
    refused = refusal(peer.result, channel)
    assert (refused.errno, refused.what) == (errno.ECONNREFUSED, "connect")
    for path, number in [
        (tmp_path / "none", errno.ENOENT),
        ("/" + "x" * 200, errno.ENAMETOOLONG),
        ("rel", errno.EINVAL),
    ]:
        channel = peer.ask(Type.CONNECT, struct.pack("<QH", PLENTY, 0) + pack_bytes(path))
        assert refusal(peer.result, channel).errno == number
    channel = peer.ask(Type.CONNECT, struct.pack("<QH", PLENTY, 0) + pack_bytes(""))
    assert refusal(peer.result, channel).what == "port"


def test_data_sent_before_the_connection_is_open_arrives(peer: Peer, server: socket.socket) -> None:
    port = server.getsockname()[1]
    channel = peer.ask(Type.CONNECT, struct.pack("<QH", PLENTY, port) + pack_bytes(""))
    peer.send(channel, Type.DATA, b"early ")
    peer.send(channel, Type.DATA, b"bird", END_FLAG)
    inside, _ = server.accept()
    with inside:
        assert everything(inside) == b"early bird"


# ---- credit ----


@pytest.mark.parametrize("size", [1 << 20, (5 << 20) + 3])
def test_an_echo_comes_back_whole(peer: Peer, server: socket.socket, size: int) -> None:
    content = os.urandom(size)
    channel, inside = connect(peer, server, 100_000)

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
            peer.send(channel, Type.DATA, piece, END_FLAG if at == size else 0)
        frame = peer.receive(channel)
        if frame.type == Type.WINDOW:
            credit += struct.unpack("<Q", frame.payload)[0]
        else:
            assert frame.type == Type.DATA
            got += frame.payload
            ended = bool(frame.flags)
            peer.grant(channel, len(frame.payload))
    echoing.join()
    assert got == content
    assert next_but_window(peer, channel).type == Type.END


def test_a_client_that_does_not_read_stops_the_host_and_not_the_agent(peer: Peer) -> None:
    listening, port = listen(peer)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    with client:
        client.connect(("127.0.0.1", port))
        channel = accepted(peer, listening)
        sent, credit = 0, INITIAL_CREDIT
        while credit:  # until the agent grants no more: kernel buffers and its own are full
            piece = bytes(min(credit, 65536))
            peer.send(channel, Type.DATA, piece)
            sent += len(piece)
            credit -= len(piece)
            peer.ping()
            for frame in [frame for frame in peer.waiting if frame.channel == channel]:
                peer.waiting.remove(frame)
                assert frame.type == Type.WINDOW
                credit += struct.unpack("<Q", frame.payload)[0]
        peer.send(channel, Type.DATA, b"", END_FLAG)
        assert sent >= INITIAL_CREDIT
        assert len(everything(client)) == sent


def test_more_data_than_credit_ends_the_connection(peer: Peer, server: socket.socket) -> None:
    channel = peer.ask(Type.CONNECT, struct.pack("<QH", PLENTY, server.getsockname()[1]) + pack_bytes(""))
    peer.send(channel, Type.DATA, bytes(INITIAL_CREDIT + 1))
    assert peer.receive(0).type == Type.ERROR


def test_a_host_that_does_not_grant_stops_the_client_and_not_the_agent(peer: Peer) -> None:
    listening, port = listen(peer)
    with client_of(port) as client:
        channel = accepted(peer, listening, 1000)
        client.setblocking(False)
        total = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                total += client.send(bytes(65536))
                peer.ping()
        assert len(peer.kept(channel)) == 1000
        client.shutdown(socket.SHUT_WR)
        got = len(data_of(peer, channel, 1000))
        peer.grant(channel, PLENTY)
        while not (frame := peer.receive(channel)).flags:
            got += len(frame.payload)
        assert got == total


def test_the_end_is_told_without_credit(peer: Peer, server: socket.socket) -> None:
    channel, inside = connect(peer, server, 5)
    inside.sendall(b"12345")
    assert data_of(peer, channel, 5) == b"12345"
    inside.close()
    assert peer.receive(channel).flags == END_FLAG
    second, inside = connect(peer, server, 0)
    inside.close()
    assert peer.receive(second).flags == END_FLAG


# ---- ending ----


def test_each_direction_ends_by_itself(peer: Peer, server: socket.socket) -> None:
    channel, inside = connect(peer, server)
    with inside:
        inside.shutdown(socket.SHUT_WR)
        assert peer.receive(channel).flags == END_FLAG
        for i in range(10):
            peer.send(channel, Type.DATA, b"%d" % i)
        peer.send(channel, Type.DATA, b"", END_FLAG)
        assert everything(inside) == b"0123456789"
    assert peer.receive(channel).type == Type.END


def test_data_after_the_end_is_a_breach(peer: Peer, server: socket.socket) -> None:
    channel, inside = connect(peer, server)
    with inside:
        peer.send(channel, Type.DATA, b"", END_FLAG)
        peer.send(channel, Type.DATA, b"more")
        frame = peer.receive()
        assert (frame.channel, frame.type) == (0, Type.ERROR)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_a_reset_is_an_error(peer: Peer, server: socket.socket) -> None:
    channel, inside = connect(peer, server)
    reset(inside)
    assert refusal(peer.result, channel).errno == errno.ECONNRESET


def test_an_answer_is_delivered_although_the_question_is_not_read(peer: Peer, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        channel = peer.ask(Type.CONNECT, struct.pack("<QH", 0, 0) + pack_bytes(tmp_path / "s"))
        inside, _ = server.accept()
        assert peer.opened(channel) == b""
        inside.sendall(b"go away")
        inside.shutdown(socket.SHUT_RD)
        for _ in range(10):  # all of it is granted again: the host can go on until it learns
            peer.send(channel, Type.DATA, bytes(65536))
            peer.receive(channel)
        inside.close()
        peer.grant(channel, PLENTY)
        assert data_of(peer, channel, 7) == b"go away"
        while (frame := peer.receive(channel)).type != Type.ERROR:
            assert frame.type in (Type.WINDOW, Type.DATA)
        assert Refused(frame.payload).errno in (errno.EPIPE, errno.ECONNRESET)


def test_cancel_resets_the_connection(peer: Peer, server: socket.socket) -> None:
    channel, inside = connect(peer, server)
    with inside:
        peer.send(channel, Type.CANCEL)
        assert refusal(peer.result, channel).errno == errno.ECANCELED
        with pytest.raises(ConnectionResetError):
            inside.recv(1)


def test_relays_outlive_their_listener(peer: Peer) -> None:
    listening, port = listen(peer)
    with client_of(port) as client:
        channel = accepted(peer, listening)
        peer.send(listening, Type.CANCEL)
        assert peer.result(listening) == (b"", b"")
        with pytest.raises(ConnectionRefusedError):
            client_of(port)
        client.sendall(b"still here")
        assert data_of(peer, channel, 10) == b"still here"


def test_closing_the_stream_closes_every_relay(peer: Peer, server: socket.socket) -> None:
    _, inside = connect(peer, server)
    peer.hang_up()
    with inside:
        assert inside.recv(1) == b""


# ---- many ----


def test_two_hundred_connections_at_once(peer: Peer) -> None:
    listening, port = listen(peer)
    clients = [client_of(port) for _ in range(200)]
    for i, client in enumerate(clients):
        client.sendall(b"%4d" % i)
    channels = {}
    for _ in clients:
        channel = accepted(peer, listening)
        channels[int(data_of(peer, channel, 4))] = channel
    assert len(channels) == 200
    for i, channel in channels.items():
        peer.send(channel, Type.DATA, b"answer %d" % i, END_FLAG)
    for i, client in enumerate(clients):
        with client:
            assert everything(client) == b"answer %d" % i
    for channel in channels.values():
        assert [peer.receive(channel).type for _ in range(2)] == [Type.DATA, Type.END]


def test_without_descriptors_connections_wait_and_the_agent_answers(peer: Peer) -> None:
    listening, port = listen(peer)
    used = [int(name) for name in os.listdir(f"/proc/{peer.process.pid}/fd")]
    limits = resource.prlimit(peer.process.pid, resource.RLIMIT_NOFILE)
    free = max(used) + 4 - len(used)
    resource.prlimit(peer.process.pid, resource.RLIMIT_NOFILE, (max(used) + 4, limits[1]))
    clients = [client_of(port) for _ in range(free + 7)]
    first = [accepted(peer, listening) for _ in range(free)]
    peer.ping()
    assert not [frame for frame in peer.waiting if frame.type == Type.ACCEPT]
    resource.prlimit(peer.process.pid, resource.RLIMIT_NOFILE, limits)
    rest = [accepted(peer, listening) for _ in range(7)]
    assert len({*first, *rest}) == free + 7
    for client in clients:
        client.close()


def test_connections_beyond_the_limit_wait_for_a_place(peer: Peer) -> None:
    hard = resource.prlimit(peer.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(peer.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    listening, port = listen(peer)
    clients = [client_of(port) for _ in range(ACCEPT_LIMIT + 5)]
    channels = [accepted(peer, listening) for _ in range(ACCEPT_LIMIT)]
    peer.ping()
    assert not [frame for frame in peer.waiting if frame.type == Type.ACCEPT]
    for channel in channels[:5]:
        peer.send(channel, Type.CANCEL)
    more = [accepted(peer, listening) for _ in range(5)]
    assert len({*channels, *more}) == ACCEPT_LIMIT + 5
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("kind", "payload"), [(Type.LISTEN, b""), (Type.LISTEN, b"123"), (Type.CONNECT, b"x"), (Type.CONNECT, bytes(20))]
)
def test_a_malformed_request_ends_the_connection(peer: Peer, kind: Type, payload: bytes) -> None:
    peer.ask(kind, payload)
    frame = peer.receive()
    assert (frame.channel, frame.type) == (0, Type.ERROR)
