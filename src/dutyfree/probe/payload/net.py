"""Reaching out: streams, datagrams, raw sockets, names."""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

_TIMEOUT_S = 0.5


def connect(targets: list[list[Any]], abstract: str) -> dict[str, Any]:
    """TCP and UDP to each address and port, and an abstract unix name; tells what could be reached."""
    connected = []
    routed = []
    for address, port in targets:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if _datagram(family, address, port):
            routed.append(address)
        if _stream(family, (address, port)):
            connected.append(f"{address}:{port}")
    if abstract and _stream(socket.AF_UNIX, "\0" + abstract):
        connected.append("abstract unix name")
    return {"connected": connected, "routed": sorted(set(routed))}


def _stream(family: int, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as stream:
            stream.settimeout(_TIMEOUT_S)
            stream.connect(address)
    except OSError:
        return False
    return True


def _datagram(family: int, address: str, port: int) -> bool:
    """A route was found and the datagram left us."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as datagram:
            datagram.connect((address, port))
            datagram.send(b"probe")
    except OSError:
        return False
    return True


def resolve(host: str, servers: list[list[Any]]) -> dict[str, Any]:
    """A name by the resolver, and a query as a datagram straight to each server."""
    try:
        answers = [str(entry[4][0]) for entry in socket.getaddrinfo(host, 80)]
    except OSError:
        answers = []
    question = b"".join(bytes([len(part)]) + part.encode() for part in host.split(".")) + b"\0\0\x10\0\x01"
    query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0" + question
    sent = []
    for address, port in servers:
        try:
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as datagram:
                datagram.sendto(query, (address, port))
                sent.append(address)
        except OSError:
            continue
    return {"answers": answers, "sent": sent}


def ask_proxy(port: int, requests: list[str]) -> dict[str, Any]:
    """Say each of these to the proxy (hex), and what it answers first."""
    answers = []
    for request in requests:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
                for piece in request.split("|"):  # a pause for an answer
                    stream.sendall(bytes.fromhex(piece))
                    answer = stream.recv(4096)
                answers.append(answer[:60].decode(errors="replace"))
        except OSError as error:
            answers.append(str(error))
    return {"answers": answers}


def hoard_proxy(port: int, target: int, count: int) -> dict[str, Any]:
    """Connect through the proxy as often as it lets us, and keep what it grants."""
    kept = []
    for _ in range(count):
        try:
            stream = socket.create_connection(("127.0.0.1", port), timeout=5)
            stream.sendall(f"CONNECT 127.0.0.1:{target} HTTP/1.1\r\n\r\n".encode())
            if b" 200 " in stream.recv(100):
                kept.append(stream)
            else:
                stream.close()
        except OSError:
            continue
    return {"granted": len(kept)}


def sniff(mark: str, seconds: float) -> dict[str, Any]:
    """Raw and packet sockets; says when it listens, and whether the mark came by."""
    sockets = []
    for family, kind, protocol in ((17, socket.SOCK_RAW, 0x0300), (2, socket.SOCK_RAW, 17), (10, socket.SOCK_RAW, 58)):
        try:
            sockets.append(socket.socket(family, kind, protocol))
        except OSError:
            continue
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    heard = False
    end = time.monotonic() + seconds
    for listening in sockets:
        listening.settimeout(0.05)
    while sockets and not heard and time.monotonic() < end:
        for listening in sockets:
            try:
                heard = heard or mark.encode() in listening.recv(65536)
            except OSError:
                continue
    return {"sockets": len(sockets), "heard": heard}


def serve(port: int, abstract: str, seconds: float) -> dict[str, Any]:
    """Listen on every address; say which there are; count who comes."""
    servers = []
    for family, address in (
        (socket.AF_INET, ("0.0.0.0", port)),  # noqa: S104
        (socket.AF_INET6, ("::", port)),
        (socket.AF_UNIX, "\0" + abstract),
    ):
        try:
            server = socket.socket(family, socket.SOCK_STREAM)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            server.bind(address)
            server.listen()
            server.settimeout(0.05)
            servers.append(server)
        except OSError:
            continue
    sys.stdout.write(f"listening {len(servers)}\n")
    sys.stdout.flush()
    visitors = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for server in servers:
            try:
                server.accept()[0].close()
                visitors += 1
            except OSError:
                continue
    return {"visitors": visitors}


ATTEMPTS = {
    "connect": connect,
    "ask-proxy": ask_proxy,
    "hoard-proxy": hoard_proxy,
    "resolve": resolve,
    "sniff": sniff,
    "serve": serve,
}
