"""The way out of a native sandbox, against servers on the host's loopback."""

import asyncio

import pytest

import dutyfree


class Server:
    """Answers every connection with what it was sent first, and counts them."""

    def __init__(self):
        self.visits = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        await self._server.wait_closed()

    async def _visit(self, reader, writer):
        self.visits += 1
        head = await reader.read(65536)
        body = head.replace(b"\r\n", b"|")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()


def play(work, *allow):
    """`work(box, server)` with the server's port in the rules for ``{port}``."""

    async def run():
        async with Server() as server, dutyfree.connect("native") as substrate:
            rules = [rule.format(port=server.port) for rule in allow]
            async with substrate.create(dutyfree.Spec(network=dutyfree.Egress(allow=rules))) as box:
                return await work(box, server)

    return asyncio.run(run())


GET = "import urllib.request as u, os; os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''; print(u.urlopen({url!r}, timeout=20).read())"


async def get(box, url):
    return await box.run(["python3", "-c", GET.format(url=url)], timeout_s=60)


def test_what_is_allowed_is_reached_by_name_and_by_address():
    async def work(box, server):
        outcomes = [await get(box, f"http://{host}:{server.port}/path?q") for host in ("localhost", "127.0.0.1")]
        return outcomes, server.visits

    outcomes, visits = play(work, "localhost:{port}", "127.0.0.1:{port}")
    assert [outcome.ok for outcome in outcomes] == [True, True], outcomes
    assert all(b"GET /path?q HTTP/1.1" in outcome.stdout for outcome in outcomes)
    assert visits == 2


def test_a_name_that_leads_to_a_special_address_is_refused_though_the_name_is_allowed():
    async def work(box, server):
        return await get(box, f"http://localhost:{server.port}/"), server.visits

    outcome, visits = play(work, "localhost:{port}")
    assert b"403" in outcome.stderr
    assert visits == 0


def test_what_is_not_on_the_list_is_refused_and_said():
    async def work(box, server):
        return await box.run(
            ["curl", "-sS", "--noproxy", "", f"http://127.0.0.1:{server.port}/"], timeout_s=60
        ), server.visits

    outcome, visits = play(work, "127.0.0.1:1")
    assert outcome.stdout.startswith(b"egress: 127.0.0.1:")
    assert outcome.stdout.endswith(b"is not on the allow-list\n")
    assert visits == 0


def test_socks_carries_any_protocol():
    code = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 1080), timeout=20)
s.sendall(b"\\x05\\x01\\x00"); assert s.recv(2) == b"\\x05\\x00"
s.sendall(b"\\x05\\x01\\x00\\x01" + socket.inet_aton("127.0.0.1") + int(sys.argv[1]).to_bytes(2, "big"))
assert s.recv(10)[1] == int(sys.argv[2])
if sys.argv[2] == "0":
    s.sendall(b"raw"); print(s.makefile("rb").read())
"""

    async def work(box, server):
        granted = await box.run(["python3", "-c", code, str(server.port), "0"], timeout_s=60)
        refused = await box.run(["python3", "-c", code, "1", "2"], timeout_s=60)
        return granted, refused

    granted, refused = play(work, "127.0.0.1:{port}")
    assert b"raw" in granted.stdout, granted.stderr
    assert refused.ok, refused.stderr


def test_the_host_header_is_the_host_that_was_checked():
    async def work(box, server):
        words = ["curl", "-sS", "--noproxy", "", "-H", "Host: elsewhere.example", f"http://127.0.0.1:{server.port}/"]
        return await box.run(words, timeout_s=60), server.port

    outcome, port = play(work, "127.0.0.1:{port}")
    assert f"Host: 127.0.0.1:{port}".encode() in outcome.stdout
    assert b"elsewhere" not in outcome.stdout


def test_there_is_no_other_way_out_and_no_resolver():
    async def work(box, server):
        direct = await box.run(
            ["curl", "-sS", "--noproxy", "*", "-m", "5", f"http://127.0.0.1:{server.port}/"], timeout_s=60
        )
        resolved = await box.run(
            ["python3", "-c", "import socket; socket.getaddrinfo('example.com', 80)"], timeout_s=60
        )
        return direct, resolved, server.visits

    direct, resolved, visits = play(work, "localhost:{port}", "127.0.0.0/8:{port}")
    assert not direct.ok
    assert not resolved.ok
    assert visits == 0


def test_a_client_that_says_nothing_or_nonsense_ends_with_its_sandbox():
    async def work(box, server):
        script = "exec 3<>/dev/tcp/127.0.0.1/1080; printf 'nonsense\\r\\n\\r\\n' >&3; head -1 <&3; exec 4<>/dev/tcp/127.0.0.1/1080"
        return await box.run(["bash", "-c", script], timeout_s=60)

    assert b"400 Bad Request" in play(work).stdout


def test_a_sandbox_that_ends_ends_its_connections():
    async def run():
        ended = asyncio.Event()

        async def visit(reader, writer):
            writer.write(b"x")
            await reader.read()
            writer.close()
            ended.set()

        server = await asyncio.start_server(visit, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with dutyfree.connect("native") as substrate:
            spec = dutyfree.Spec(network=dutyfree.Egress(allow=[f"127.0.0.1:{port}"]))
            async with substrate.create(spec) as box:
                script = f"exec 3<>/dev/tcp/127.0.0.1/1080; printf 'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3"
                running = await box.start(["bash", "-c", script])
                async for _, chunk in running:
                    if chunk.endswith(b"x"):
                        break
            await asyncio.wait_for(ended.wait(), 20)
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_programs_are_told_of_the_proxy_and_the_caller_may_say_otherwise():
    async def run():
        async with dutyfree.connect("native") as substrate:
            spec = dutyfree.Spec(network=dutyfree.Egress(allow=[]), env={"HTTP_PROXY": "mine"})
            async with substrate.create(spec) as box:
                return (await box.run(["env"])).stdout.decode().splitlines()

    lines = asyncio.run(run())
    assert "HTTPS_PROXY=http://127.0.0.1:1080" in lines
    assert "HTTP_PROXY=mine" in lines


def test_a_port_of_the_loopback_that_is_named_is_reached_without_the_proxy_which_programs_do_not_ask_for_it():
    async def work(box, server):
        direct = await box.run(["curl", "-sS", f"http://127.0.0.1:{server.port}/x"], timeout_s=60)
        async with (await box.fork(1))[0] as fork:
            again = await fork.run(["curl", "-sS", f"http://127.0.0.1:{server.port}/x"], timeout_s=60)
        return direct, again

    for outcome in play(work, "127.0.0.1:{port}", "127.0.0.1:*"):
        assert b"GET /x HTTP/1.1" in outcome.stdout, outcome


def test_the_proxys_own_port_cannot_be_one_of_the_owners():
    async def run():
        async with dutyfree.connect("native") as substrate:
            spec = dutyfree.Spec(network=dutyfree.Egress(allow=["127.0.0.1:1080"]))
            with pytest.raises(dutyfree.Misuse, match="provide"):
                await substrate.create(spec)

    asyncio.run(run())


HOARD = """
import socket, sys
kept = []
for _ in range(200):
    s = socket.create_connection(("127.0.0.1", 1080), timeout=20)
    s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\\r\\n\\r\\n" % int(sys.argv[1]))
    answer = s.recv(200)
    if b" 200 " in answer: kept.append(s)
    else: print(answer.decode().splitlines()[0])
print(len(kept))
"""


def test_connections_are_bounded_and_the_rest_is_refused_in_words():
    async def run():
        async with asyncio.timeout(120):
            held = []
            server = await asyncio.start_server(lambda *streams: held.append(streams), "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            async with dutyfree.connect("native") as substrate:
                spec = dutyfree.Spec(network=dutyfree.Egress(allow=[f"127.0.0.1:{port}"]))
                async with substrate.create(spec) as box:
                    outcome = await box.run(["python3", "-c", HOARD, str(port)])
            for _, writer in held:
                writer.close()
            server.close()
            return outcome.stdout.decode().splitlines()

    *refused, kept = asyncio.run(run())
    assert int(kept) <= 128
    assert refused == ["HTTP/1.1 503 Service Unavailable"] * (200 - int(kept))
