"""Kernel memory in sockets: queues that nobody reads, packets that are not sent, and what hangs off options.

Each is a generator that yields after every step, as `hoard` wants it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

_BIG = 1 << 30
_SOCKETS = 4000
_FILTERS = 200


def _udp(target: tuple[str, int] | None = None) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    if target is not None:
        made.connect(target)
    return made


def _deaf() -> socket.socket:
    """A receiver that keeps nothing."""
    made = _udp()
    made.bind(("127.0.0.1", 0))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    return made


def netlink() -> Iterator[object]:
    """Refusals with a copy of the request, queued until somebody reads them."""
    body = b"z" * 30_000
    message = struct.pack("=IHHII", 16 + len(body), 16, 5, 1, 0) + body
    for protocol in (0, 4, 9, 15, 16, 20, 21):
        for _ in range(_SOCKETS):
            try:
                made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
            except OSError:
                break
            made.setblocking(False)
            with suppress(OSError):
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BIG)
            with suppress(OSError):
                for _ in range(200):
                    made.send(message)
            yield made


def _stamped(option: int, flags: int) -> Iterator[object]:
    """Copies of sent packets in the sender's error queue."""
    deaf = _deaf()
    for _ in range(_SOCKETS):
        made = _udp(deaf.getsockname())
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BIG)
        if option:
            made.setsockopt(socket.SOL_SOCKET, option, struct.pack("I", flags))
        with suppress(OSError):
            for _ in range(150):
                made.sendmsg([b"x" * 60_000], [] if option else [(socket.SOL_SOCKET, 37, struct.pack("I", flags))])
        yield made


def stamps() -> Iterator[object]:
    """As option 37 and 65 of the socket: SO_TIMESTAMPING."""
    try:
        yield from _stamped(37, 2 | 16 | 256)
    except OSError:
        yield from _stamped(65, 2 | 16 | 256)


def message_stamps() -> Iterator[object]:
    """The same asked for with each message, which no filter of system calls sees."""
    yield from _stamped(0, 2 | 256)


def errors() -> Iterator[object]:
    """Refusals of datagrams to a closed port, for both families: IP_RECVERR."""
    for family, level, option, address in ((2, 0, 11, "127.0.0.1"), (10, 41, 25, "::1")):
        for _ in range(_SOCKETS):
            made = socket.socket(family, socket.SOCK_DGRAM)
            made.setblocking(False)
            try:
                made.setsockopt(level, option, 1)
            except OSError:
                break
            with suppress(OSError):
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BIG)
            for _ in range(2000):
                with suppress(OSError):
                    made.sendto(b"x" * 60_000, (address, 9))
            yield made


def tcp() -> Iterator[object]:
    """Bytes sent and not read."""
    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    for _ in range(_SOCKETS):
        client = socket.create_connection(server.getsockname())
        client.setblocking(False)
        taken = server.accept()[0]
        with suppress(BlockingIOError):
            while True:
                client.send(b"x" * (1 << 20))
        yield client, taken


def unaccepted() -> Iterator[object]:
    """Bytes sent to connections that nobody has accepted, whose senders are gone."""
    for _ in range(_SOCKETS):
        server = socket.create_server(("127.0.0.1", 0), backlog=1 << 16)
        for _ in range(4000):
            client = socket.socket()
            client.setblocking(False)
            if client.connect_ex(server.getsockname()) not in (0, 115):
                break
            try:
                while client.send(b"x" * 65_536):
                    pass
            except BlockingIOError:
                pass
            except OSError:
                break
            yield client
        yield server


def udp() -> Iterator[object]:
    """Datagrams received and not read."""
    for _ in range(_SOCKETS):
        made = _udp()
        made.bind(("127.0.0.1", 0))
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BIG)
        sender = _udp(made.getsockname())
        with suppress(OSError):
            for _ in range(200):
                sender.send(b"x" * 60_000)
        sender.close()
        yield made


def corked() -> Iterator[object]:
    """Datagrams that wait for their end: MSG_MORE."""
    deaf = _deaf()
    for _ in range(5 * _SOCKETS):
        made = _udp(deaf.getsockname())
        made.send(b"x" * 65_000, socket.MSG_MORE)
        yield made


def memberships() -> Iterator[object]:
    """Groups of both families that a socket joins, on loopback."""
    for _ in range(_SOCKETS):
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with suppress(OSError):
            for _ in range(4000):
                made.setsockopt(41, 20, b"\xff\x11" + os.urandom(14) + struct.pack("I", 1))
        yield made


def filters() -> Iterator[object]:
    """Some hundred filters of sockets. A thousand that are freed at once can wedge a kernel for good (Linux 6.18)."""
    code = (struct.pack("HBBI", 0x20, 0, 0, 0xFFFFF000) + struct.pack("HBBI", 0x15, 0, 0, 7)) * 50
    code += struct.pack("HBBI", 6, 0, 0, 0xFFFF)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    for _ in range(_FILTERS):
        made = _udp()
        made.setsockopt(socket.SOL_SOCKET, 26, program)
        yield made


def keys() -> Iterator[object]:
    """Keys of TCP signatures, one for each address."""
    for _ in range(_SOCKETS):
        made = socket.socket()
        with suppress(OSError):
            for number in range(4000):
                address = struct.pack("HHI", 2, 0, number + 1).ljust(128, b"\0")
                made.setsockopt(6, 14, address + struct.pack("BBHIi", 0, 0, 4, 0, 0) + b"x" * 80)
        yield made


def flows() -> Iterator[object]:
    """Labels of IPv6 flows: when there are few left, one is given to each socket that has none."""
    for _ in range(_SOCKETS):
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        made.setsockopt(41, 32, _new_label())
        with suppress(OSError):
            for _ in range(31):
                made.setsockopt(41, 32, _new_label())
        yield made


def _new_label() -> bytes:
    """The kernel writes its answer into it, so each is used once."""
    return b"".join([bytes(15), b"\1", bytes(4), struct.pack("BBHHHI", 0, 1, 1, 6, 60, 0)])


HOARDS: dict[str, Callable[[], Iterator[object]]] = {
    "netlink replies": netlink,
    "time stamps": stamps,
    "time stamps by message": message_stamps,
    "errors": errors,
    "TCP": tcp,
    "TCP not accepted": unaccepted,
    "UDP": udp,
    "corked": corked,
    "memberships": memberships,
    "filters": filters,
    "keys": keys,
    "flows": flows,
}
