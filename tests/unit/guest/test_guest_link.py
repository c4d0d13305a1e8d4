"""The link itself: its transports, its end, and what it sends."""

import asyncio
import os
import socket
import struct

import pytest

from dutyfree.core.errors import SandboxLost
from dutyfree.core.spec import Spec
from dutyfree.guest.link import Link


async def test_a_run_is_one_frame_as_the_protocol_says(peer_box):
    async with peer_box() as (box, peer):
        call = asyncio.ensure_future(
            box.run(["a", "bc"], timeout_s=2, cwd="/w", env={"K": "v"}, stdin=b"in", user="u", output_limit_bytes=10)
        )
        channel, kind, flags, payload = await peer.hear()
        assert (kind, flags) == (0x10, 0)
        options, rows, columns, deadline, limit, window = struct.unpack_from("<IHHQQQ", payload)
        assert (options, rows, columns, deadline, limit) == (0, 0, 0, 2_000_000_000, 10)
        assert window >= 20
        assert payload[32:] == (b"\2\0\0\0/w\1\0\0\0u\2\0\0\0\1\0\0\0a\2\0\0\0bc\1\0\0\0\3\0\0\0K=v\2\0\0\0in")
        await peer.say(channel, 0x22, b"err", flags=1)
        await peer.exit(channel, code=3, flags=1, omitted=7)
        outcome = await call
        assert (outcome.exit_code, outcome.stderr, outcome.truncated, outcome.omitted_bytes) == (3, b"err", True, 7)
        assert (outcome.run_ns, outcome.cpu_ns, outcome.max_rss_bytes) == (1000, 900, 4096)


async def test_defaults_are_sent_once_and_only_if_there_are_any(peer_box):
    async with peer_box(spec=Spec(cwd="/w", user="u", env={"A": "b"}, idle_s=2)) as (_, peer):
        channel, kind, _, payload = await peer.hear()
        assert (channel, kind) == (0, 0x02)
        expected = b"\2\0\0\0/w\1\0\0\0u\1\0\0\0\3\0\0\0A=b"
        assert payload == struct.pack("<Q", 2_000_000_000) + expected
    async with peer_box() as (box, peer):
        ping = asyncio.ensure_future(box.link.ping(b"first"))
        channel, kind, _, payload = await peer.hear()
        assert (kind, payload) == (0x03, b"first")
        await peer.say(channel, 0x51, payload)
        await ping


async def test_a_pair_of_pipes_is_a_stream_too(agent_path):
    to_agent, from_agent = os.pipe(), os.pipe()
    process = await asyncio.create_subprocess_exec(agent_path, stdin=to_agent[0], stdout=from_agent[1])
    os.close(to_agent[0])
    os.close(from_agent[1])
    link = Link.attach((from_agent[0], to_agent[1]), sandbox="pipes")
    await link.hello(30)
    await link.ping(bytes(900_000))
    link.close()
    assert await process.wait() is not None
    with pytest.raises(SandboxLost):
        await link.ping()


class Streams:
    """A transport over asyncio streams: what an adapter for another kind of stream looks like."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    def start(self, parser, lost):
        self._task = asyncio.ensure_future(self._pump(parser, lost))

    async def _pump(self, parser, lost):
        while data := await self._reader.read(65536):
            parser.feed(data)
        lost("the stream has ended", False)

    def send(self, *parts):
        self._writer.writelines(parts)

    async def drained(self):
        await self._writer.drain()

    def close(self):
        self._task.cancel()
        self._writer.close()


async def test_any_stream_can_be_a_transport(agent_path):
    ours, theirs = socket.socketpair()
    process = await asyncio.create_subprocess_exec(agent_path, "--fd", str(theirs.fileno()), pass_fds=[theirs.fileno()])
    theirs.close()
    transport = Streams(*await asyncio.open_unix_connection(sock=ours))
    link = Link.attach(transport, sandbox="streams")
    await link.hello(30)
    await link.ping(b"x" * 1_000_000)
    link.close()
    await asyncio.wait([transport._task])
    await process.wait()


async def test_what_does_not_fit_into_the_socket_is_queued_in_order(peer_box):
    async with peer_box() as (box, peer):
        writing = asyncio.ensure_future(box.write("/f", bytes(5_000_000)))
        pings = [asyncio.ensure_future(box.link.ping(bytes([i]))) for i in range(50)]
        size, answered = 0, 0
        while size < 5_000_000 or answered < 50:
            channel, kind, flags, payload = await peer.hear()
            if kind == 0x03:
                assert payload == bytes([answered])
                answered += 1
                await peer.say(channel, 0x51, payload)
            elif kind == 0x50:
                size += len(payload)
                if flags & 1:
                    await peer.say(channel, 0x51, struct.pack("<Q", size))
        await asyncio.gather(writing, *pings)


async def test_a_refused_upload_stops_sending(peer_box):
    async with peer_box() as (box, peer):
        writing = asyncio.ensure_future(box.write("/f", bytes(50_000_000)))
        channel, *_ = await peer.hear()
        await peer.error(channel, 28, b"write")
        heard = 0
        while not writing.done():
            hearing = asyncio.ensure_future(peer.hear())
            await asyncio.wait([hearing, writing], return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                heard += len(hearing.result()[3])
            else:
                hearing.cancel()
                await asyncio.wait([hearing])
        with pytest.raises(OSError):
            await writing
        assert heard < 10_000_000


async def test_a_stream_that_ends_fails_calls_that_wait_to_send(peer_box):
    async with peer_box() as (box, peer):
        writing = asyncio.ensure_future(box.write("/f", bytes(50_000_000)))
        await peer.hear()
        peer.close()
        with pytest.raises(SandboxLost):
            await writing


async def test_numbers_in_use_are_not_given_twice(peer_box):
    async with peer_box() as (box, peer):
        first = asyncio.ensure_future(box.link.ping())
        channel, *_ = await peer.hear()
        box.link._last = channel - 1
        second = asyncio.ensure_future(box.link.ping())
        other, *_ = await peer.hear()
        assert other != channel
        await peer.say(other, 0x51)
        await peer.say(channel, 0x51)
        await asyncio.gather(first, second)


async def test_a_second_terminal_frame_ends_the_link(peer_box):
    async with peer_box() as (box, peer):
        call = asyncio.ensure_future(box.run(["true"]))
        channel, *_ = await peer.hear()
        await peer.exit(channel)
        await peer.exit(channel)
        assert (await call).ok
        await peer.ended()
        with pytest.raises(SandboxLost, match="not open"):
            await box.run(["true"])


async def test_a_driver_that_does_not_know_the_cause_costs_no_answer(peer_box, monkeypatch):
    async def never():
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("dutyfree.guest.link.CAUSE_TIMEOUT_S", 0.01)
    async with peer_box(reason=never) as (box, peer):
        call = asyncio.ensure_future(box.run(["true"]))
        await peer.hear()
        peer.close()
        with pytest.raises(SandboxLost, match="does not know why"):
            await call


async def test_a_release_that_fails_is_told_to_every_destroyer(peer_box):
    async def release():
        raise OSError("stuck")

    async with peer_box() as (box, _):
        box._release = release
        results = await asyncio.gather(box.destroy(), box.destroy(), return_exceptions=True)
        assert [str(result) for result in results] == ["stuck", "stuck"]
        box._end = None
        box._release = lambda: asyncio.sleep(0)


async def test_the_agents_last_words_are_heard_although_it_listens_no_more(peer_box):
    async with peer_box() as (box, peer):
        await peer.error(0, 71, b"exec", b"nonsense")
        peer.close()
        with pytest.raises(SandboxLost, match="gave up: exec: nonsense"):
            await box.run(["true"])
