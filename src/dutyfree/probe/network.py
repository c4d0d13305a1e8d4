"""Probes 98 to 104: with the network policy `none`, nobody outside hears anything."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence

from dutyfree.core.contract import Process, Substrate
from dutyfree.core.egress import Egress
from dutyfree.probe.canary import host_addresses, listener
from dutyfree.probe.scene import need, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_METADATA = (
    ("169.254.169.254", 80),
    ("169.254.170.2", 80),
    ("fd00:ec2::254", 80),
    ("100.100.100.200", 80),
    ("fe80::a9fe:a9fe", 80),
)
_PRIVATE = (
    ("10.0.0.1", 443), ("10.96.0.1", 443), ("172.16.0.1", 80), ("172.17.0.1", 2375), ("192.168.0.1", 80),
    ("192.168.1.1", 6443), ("10.0.0.1", 10250), ("10.0.0.1", 2379), ("fd00::1", 443), ("1.1.1.1", 443),
)  # fmt: skip


async def host_listener(substrate: Substrate) -> Verdict:
    """98: listeners on the host's loopback and other addresses, and an abstract unix name."""
    async with listener() as heard:
        targets = [[address, heard.port] for address in host_addresses()]
        async with stage(substrate) as box:
            tried = await box.attempt("connect", targets=targets, abstract=heard.abstract)
        await asyncio.sleep(0)
        if heard.visitors or tried.said.get("connected"):
            return broke(f"the host was reached: {sorted(set(heard.visitors)) or tried.said['connected']}")
    return held(f"none of {len(targets)} addresses was reached")


def _unreachable(targets: Sequence[tuple[str, int]]) -> Callable[[Substrate], Awaitable[Verdict]]:
    async def run(substrate: Substrate) -> Verdict:
        async with stage(substrate) as box:
            said = (await box.attempt("connect", targets=targets, abstract="")).said
        need(bool(said), "the attempt did not report")
        if said["connected"]:
            return broke(f"connected to {', '.join(said['connected'])}")
        return (
            broke(f"there is a route to {', '.join(said['routed'])}")
            if said["routed"]
            else held("no route to any of them")
        )

    return run


async def names(substrate: Substrate) -> Verdict:
    """101: data in queries for names."""
    async with listener() as heard:
        servers = [[address, port] for address in host_addresses() for port in (53, heard.port)]
        async with stage(substrate) as box:
            said = (await box.attempt("resolve", host=f"{secrets.token_hex(8)}.example.com", servers=servers)).said
        await asyncio.sleep(0)
        if heard.visitors:
            return broke("datagrams reached the host")
    outside = [address for address in said.get("sent", []) if not address.startswith("127.") and address != "::1"]
    if said.get("answers") or outside:
        return broke(f"queries left the sandbox: {outside or said['answers']}")
    return held("no query left the sandbox")


async def raw_sockets(substrate: Substrate) -> Verdict:
    """102: the host's own traffic, heard from inside."""
    need(substrate.capabilities.stream, "commands cannot be left running here")
    mark = f"traffic{secrets.token_hex(8)}"
    async with stage(substrate) as box:
        running = await box.box.start(box.command("sniff", mark=mark, seconds=1), timeout_s=30)
        text = await _after_first_line(running, mark)
    if b'"heard": true' in text:
        return broke("traffic of the host's loopback was heard")
    return held(
        "nothing of the host's traffic was heard"
        + ("" if b'"sockets": 0' in text else "; raw sockets open, on its own network")
    )


async def _after_first_line(running: Process, mark: str) -> bytes:
    """All it says; once it listens, the host's loopback carries the mark."""
    text = b""
    async for _, chunk in running:
        if not text:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
                for _ in range(16):
                    own.sendto(mark.encode(), ("127.0.0.1", 9))
        text += chunk
    await running.wait()
    return text


async def other_sandboxes(substrate: Substrate) -> Verdict:
    """103: a sibling that listens on all its addresses."""
    need(substrate.capabilities.stream, "commands cannot be left running here")
    port, abstract = 20_000 + secrets.randbelow(10_000), f"peer{secrets.token_hex(8)}"
    async with stage(substrate) as server, stage(substrate) as client:
        running = await server.box.start(server.command("serve", port=port, abstract=abstract, seconds=3), timeout_s=30)
        output = aiter(running)
        await anext(output)
        found = await server.box.run(
            "hostname -I 2>/dev/null; cat /proc/net/fib_trie | grep -oE '[0-9]+(\\.[0-9]+){3}' | sort -u", timeout_s=10
        )
        addresses = {"127.0.0.1", "::1", *found.stdout.decode(errors="replace").split()}
        tried = await client.attempt(
            "connect", targets=[[address, port] for address in sorted(addresses)], abstract=abstract
        )
        text = b"".join([chunk async for _, chunk in output])
        await running.wait()
    if tried.said.get("connected") or b'"visitors": 0' not in text:
        return broke(f"a sibling was reached: {tried.said.get('connected')}")
    return held("the sibling had no visitor")


def _ways(allowed: int, forbidden: int) -> list[bytes | tuple[bytes, bytes]]:
    """Requests by which a client may try to reach a port that is not on the list."""
    spellings = (
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "localhost", "LOCALHOST.", "[::1]", "[::ffff:127.0.0.1]",
        "0.0.0.0", "[::]", "127.0.0.2", "[64:ff9b::7f00:1]", "localhost%00.example.com", "allowed.example@127.0.0.1",  # noqa: S104 - asked for, not bound
    )  # fmt: skip
    ways: list[bytes | tuple[bytes, bytes]] = []
    for host in spellings:
        ways.append(f"CONNECT {host}:{forbidden} HTTP/1.1\r\nHost: 127.0.0.1:{allowed}\r\n\r\n".encode())
        ways.append(f"GET http://{host}:{forbidden}/ HTTP/1.1\r\nHost: 127.0.0.1:{allowed}\r\n\r\n".encode())
        name = host.strip("[]").encode()
        ways.append((b"\x05\x01\x00", b"\x05\x01\x00\x03" + bytes([len(name)]) + name + forbidden.to_bytes(2, "big")))
    for kind, address in (
        (1, socket.inet_aton("127.0.0.1")),
        (4, socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1")),
    ):
        tail = bytes([0, kind]) + address + forbidden.to_bytes(2, "big")
        ways.extend((b"\x05\x01\x00", bytes([5, command]) + tail) for command in (1, 2, 3))
    first = f"GET http://127.0.0.1:{allowed}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    ways += [
        first + f"GET http://127.0.0.1:{forbidden}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        f"CONNECT 127.0.0.1:{allowed}\r\nX: 127.0.0.1:{forbidden} HTTP/1.1\r\n\r\n".encode(),
        f"CONNECT 127.0.0.1:{allowed + 65536 * 3} HTTP/1.1\r\n\r\n".encode(),
        b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n",
        b"GET http://[fd00:ec2::254]/latest/meta-data/ HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 20_000,
    ]
    return ways


async def allow_list(substrate: Substrate) -> Verdict:
    """104: getting around an allow-list, by every spelling of where one may not go."""
    need(substrate.capabilities.egress, "no allow-list is offered")
    async with listener() as upstream, listener() as other:
        policy = Egress(allow=[f"127.0.0.1:{upstream.port}"])
        ways = [way if isinstance(way, tuple) else (way,) for way in _ways(upstream.port, other.port)]
        honest = (f"CONNECT 127.0.0.1:{upstream.port} HTTP/1.1\r\n\r\n".encode(),)
        requests = ["|".join(piece.hex() for piece in way) for way in [honest, *ways]]
        async with stage(substrate, policy) as box:
            port = int((await box.box.run("echo ${HTTP_PROXY##*:}", timeout_s=30)).stdout)
            said = (await box.attempt("ask-proxy", port=port, requests=requests, timeout_s=90)).said
            # What is on the list, 127.0.0.1 and its port, is reached without the proxy too.
            direct = [[address, number] for address in host_addresses() for number in (other.port, upstream.port)]
            direct.remove(["127.0.0.1", upstream.port])
            tried = (await box.attempt("connect", targets=direct, abstract=other.abstract)).said
            alive = await box.alive()
        await asyncio.sleep(0)
    need(bool(said), "the attempt did not report")
    if other.visitors or tried.get("connected"):
        return broke(f"a port that is not on the list was reached: {sorted(set(other.visitors)) or tried['connected']}")
    if not upstream.visitors or " 200 " not in said["answers"][0]:
        return broke(f"what is on the list was not reached: {said['answers'][0]!r}")
    return held(f"{len(ways)} ways around it, none led out") if alive else broke("the sandbox does not answer any more")


PROBES = (
    Probe(id=98, name="host-loopback-and-gateway", group="network", run=host_listener, harmless=True),
    Probe(id=99, name="metadata-addresses", group="network", run=_unreachable(_METADATA)),
    Probe(id=100, name="private-ranges", group="network", run=_unreachable(_PRIVATE)),
    Probe(id=101, name="dns-tunnel", group="network", run=names),
    Probe(id=102, name="raw-sockets", group="network", run=raw_sockets, harmless=True),
    Probe(id=103, name="other-sandboxes", group="network", run=other_sandboxes, harmless=True),
    Probe(id=104, name="allow-list-bypass", group="network", run=allow_list, harmless=True),
)
