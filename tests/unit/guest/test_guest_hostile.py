"""An agent that lies: each lie ends the link, names itself in `SandboxLost`, and has the sandbox released."""

import asyncio
import struct

import pytest

from dutyfree.core.errors import DriverError, Misuse, SandboxLost, Unavailable

U64 = struct.Struct("<Q")


def entry(name, mode=0o100644, size=0):
    return struct.pack("<IIIQQ", mode, 0, 0, size, 0) + struct.pack("<I", len(name)) + name


async def lied_to(peer_box, lie, action=lambda box: box.run(["true"]), match=""):
    async with peer_box() as (box, peer):
        call = asyncio.ensure_future(action(box))
        channel, *_ = await peer.hear()
        await lie(peer, channel)
        with pytest.raises(SandboxLost, match=match) as caught:
            await call
        assert caught.value.sandbox == "box-1"
        await peer.ended()
        with pytest.raises(SandboxLost):
            await box.run(["true"])
        await box.destroy()
        assert box.released == [True]


LIES = {
    "a frame on a channel that is not open": (lambda p, c: p.say(c + 1, 0x21, b"x"), "not open"),
    "a frame over the size limit": (lambda p, c: p.raw(struct.pack("<IIBBH", 1 << 30, c, 0x21, 0, 0)), "claims"),
    "a header with a value where zero belongs": (lambda p, c: p.raw(struct.pack("<IIBBH", 0, c, 0x21, 0, 9)), "claims"),
    "an unknown frame type": (lambda p, c: p.say(c, 0x99), "0x99"),
    "a host's frame sent by the agent": (lambda p, c: p.say(c, 0x10), "0x10"),
    "unknown flags": (lambda p, c: p.say(c, 0x21, b"x", flags=0x82), "flags"),
    "a second greeting": (lambda p, c: p.hello(), "0x1 "),
    "an error that ends the connection": (lambda p, c: p.error(0, 71, b"exec", b"\x1b[31mno"), r"gave up: exec: \?\[31mno"),
    "output beyond the limit": (lambda p, c: p.say(c, 0x21, bytes(600)), "more output"),
    "an impossible ending": (lambda p, c: p.exit(c, ending=6), "ending 6"),
    "an impossible exit code": (lambda p, c: p.exit(c, code=256), "code 256"),
    "an impossible signal": (lambda p, c: p.exit(c, ending=1, code=65), "code 65"),
    "an impossible count": (lambda p, c: p.exit(c, omitted=1 << 63), "count"),
    "an EXIT that is too long": (lambda p, c: p.say(c, 0x23, bytes(41)), "41 bytes"),
    "an EXIT that is too short": (lambda p, c: p.say(c, 0x23, b""), "0 bytes"),
    "END for a command": (lambda p, c: p.say(c, 0x51), "no sense"),
    "an ERROR cut short": (lambda p, c: p.say(c, 0x52, b"\1\0"), "short"),
    "an ERROR with a length past its frame": (lambda p, c: p.say(c, 0x52, struct.pack("<II", 1, 1 << 31)), "past the frame"),
    "an ERROR with bytes after it": (lambda p, c: p.say(c, 0x52, struct.pack("<III", 1, 0, 0) + b"x"), "malformed"),
    "an impossible errno": (lambda p, c: p.say(c, 0x52, struct.pack("<III", 1 << 20, 0, 0)), "malformed"),
    "more credit than memory": (lambda p, c: p.say(c, 0x17, U64.pack((1 << 64) - 1)), "credit"),
    "a WINDOW of the wrong size": (lambda p, c: p.say(c, 0x17, b"\1"), "WINDOW"),
    "an accepted connection nobody listens for": (
        lambda p, c: p.say(0x80000001, 0x41, struct.pack("<I", 99)), "listener"),
    "an accepted connection on a command": (
        lambda p, c: p.say(0x80000001, 0x41, struct.pack("<I", c)), "does not listen"),
    "an accepted connection on the host's own number": (
        lambda p, c: p.say(77, 0x41, struct.pack("<I", c)), "not open"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
async def test_a_lie_about_a_command_ends_the_link(peer_box, name):
    lie, match = LIES[name]
    big = bytes(1 << 20)

    def action(box):
        return box.run(["cat"], output_limit_bytes=10, stdin=big if "WINDOW" in name or "credit" in name else b"")

    await lied_to(peer_box, lie, action, match)


async def _closed(box):
    shell = await box.shell()
    await shell.run("true")


async def _waited(box):
    process = await box.start(["true"])
    await process.wait()


FILE_LIES = {
    "more of a file than was asked for": (
        lambda box: box.read("/f", length=4), lambda p, c: p.say(c, 0x50, b"12345"), "more of a file"),
    "a file size of the wrong shape": (lambda box: box.read("/f"), lambda p, c: p.say(c, 0x51, b"123"), "END"),
    "fewer bytes written than sent": (
        lambda box: box.write("/f", b"12345"), lambda p, c: p.say(c, 0x51, U64.pack(4)), "4 bytes of 5"),
    "a payload where none belongs": (lambda box: box.mkdir("/d"), lambda p, c: p.say(c, 0x51, b"x"), "END"),
    "a directory entry cut short": (lambda box: box.list("/"), lambda p, c: p.say(c, 0x50, entry(b"x")[:-1]), "past"),
    "a directory entry with a path": (lambda box: box.list("/"), lambda p, c: p.say(c, 0x50, entry(b"a/b")), "name"),
    "a directory entry called ..": (lambda box: box.list("/"), lambda p, c: p.say(c, 0x50, entry(b"..")), "name"),
    "a directory entry without a name": (lambda box: box.list("/"), lambda p, c: p.say(c, 0x50, entry(b"")), "name"),
    "an overlong directory entry": (lambda box: box.list("/"), lambda p, c: p.say(c, 0x50, entry(b"x" * 256)), "name"),
    "an impossible file size": (
        lambda box: box.list("/"), lambda p, c: p.say(c, 0x50, entry(b"x", size=1 << 63)), "no sense"),
    "an impossible mode": (
        lambda box: box.stat("/"), lambda p, c: p.say(c, 0x51, entry(b"x", mode=1 << 20)), "no sense"),
    "two entries where one belongs": (
        lambda box: box.stat("/"), lambda p, c: p.say(c, 0x51, entry(b"x") * 2), "more than one"),
    "no entry where one belongs": (lambda box: box.stat("/"), lambda p, c: p.say(c, 0x51), "short"),
    "a shell that opens twice": (
        _closed, lambda p, c: p.raw(struct.pack("<IIBBH", 0, c, 0x43, 0, 0) * 2), "no sense"),
    "a process that starts twice": (
        _waited,
        lambda p, c: p.raw((struct.pack("<IIBBH", 4, c, 0x20, 0, 0) + b"\1\0\0\0") * 2), "no sense"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILE_LIES)
async def test_a_lie_about_anything_else_ends_the_link(peer_box, name):
    action, lie, match = FILE_LIES[name]
    await lied_to(peer_box, lie, action, match)


async def test_a_process_that_writes_beyond_its_credit_ends_the_link(peer_box):
    async with peer_box() as (box, peer):
        starting = asyncio.ensure_future(box.start(["yes"]))
        channel, *_ = await peer.hear()
        await peer.say(channel, 0x20, b"\1\0\0\0")
        process = await starting
        await peer.raw(struct.pack("<IIBBH", 1 << 20, channel, 0x21, 0, 0) + bytes(1 << 20))
        await peer.say(channel, 0x21, b"x")
        await peer.ended()
        with pytest.raises(SandboxLost, match="credit"):
            await process.wait()


async def test_a_greeting_that_is_not_an_agents_is_refused(peer_box):
    greetings = [
        struct.pack("<IHHIQ", 0x41465345, 1, 0, 1 << 20, 0),
        struct.pack("<IHHIQ", 0x41465344, 2, 0, 1 << 20, 0),
        struct.pack("<IHHIQ", 0x41465344, 1, 1, 1 << 20, 0),
        b"",
    ]
    for greeting in greetings:
        async with peer_box(greet=False) as (box, peer):
            await peer.say(0, 0x01, greeting)
            with pytest.raises(SandboxLost, match="protocol"):
                await box.link.hello(30)


async def test_an_agent_that_does_not_greet_is_unavailable(peer_box):
    async with peer_box(greet=False) as (box, _):
        with pytest.raises(Unavailable, match="not greeted"):
            await box.link.hello(0.01)


async def test_an_endless_listing_is_cut_at_the_limit_and_taken_back(peer_box):
    async with peer_box() as (box, peer):
        call = asyncio.ensure_future(box.list("/d", limit=3))
        channel, *_ = await peer.hear()
        await peer.say(channel, 0x50, b"".join(entry(b"%d" % i) for i in range(1000)))
        with pytest.raises(Misuse, match="more than 3 entries"):
            await call
        assert (await peer.hear())[:2] == (channel, 0x16)
        await peer.say(channel, 0x50, entry(b"late"))
        await peer.error(channel, 125)
        ping = asyncio.ensure_future(box.link.ping(b"still here"))
        channel, kind, _, payload = await peer.hear()
        assert kind == 0x03
        await peer.say(channel, 0x51, payload)
        await ping
        assert not box.link.channels


async def test_a_file_over_the_limit_is_refused_and_not_held(peer_box, monkeypatch):
    async with peer_box() as (box, peer):
        from dutyfree.guest import file

        call = asyncio.ensure_future(file.read(box.link, "/f", 0, None, limit=10))
        channel, _, _, payload = await peer.hear()
        assert struct.unpack_from("<QQQ", payload) == (0, 11, 11)
        await peer.say(channel, 0x50, bytes(11))
        await peer.say(channel, 0x51, U64.pack(1 << 40))
        with pytest.raises(Misuse, match="more than 10 bytes"):
            await call


async def test_a_million_pieces_of_one_byte_are_one_output(peer_box):
    async with peer_box() as (box, peer):
        call = asyncio.ensure_future(box.run(["x"]))
        channel, *_ = await peer.hear()
        for _ in range(20):
            await peer.raw((struct.pack("<IIBBH", 1, channel, 0x21, 0, 0) + b"x") * 5000)
        await peer.exit(channel)
        assert (await call).stdout == b"x" * 100_000


async def test_an_agent_that_ignores_the_deadline_is_cancelled_then_given_up(peer_box):
    async with peer_box() as (box, peer):
        box.link.grace_s = 0.01
        call = asyncio.ensure_future(box.run(["sleep", "9"], timeout_s=0.01))
        channel, *_ = await peer.hear()
        assert (await peer.hear())[:2] == (channel, 0x16)
        with pytest.raises(SandboxLost, match="not obeyed"):
            await call
        await peer.ended()
        await box.destroy()
        assert box.released == [True]


async def test_a_command_killed_by_the_hosts_own_deadline_is_a_timeout(peer_box):
    async with peer_box() as (box, peer):
        box.link.grace_s = 0.01
        call = asyncio.ensure_future(box.run(["sleep", "9"], timeout_s=0.01))
        channel, *_ = await peer.hear()
        assert (await peer.hear())[:2] == (channel, 0x16)
        await peer.exit(channel, ending=5, code=9)
        outcome = await call
        assert (outcome.ending, outcome.signal, outcome.exit_code) == ("timeout", 9, None)


async def test_an_agent_that_ignores_a_cancelled_call_is_given_up(peer_box):
    async with peer_box() as (box, peer):
        box.link.grace_s = 0.001
        call = asyncio.ensure_future(box.run(["sleep", "9"]))
        channel, *_ = await peer.hear()
        call.cancel()
        assert (await peer.hear())[:2] == (channel, 0x16)
        await peer.ended()
        with pytest.raises(SandboxLost, match="not obeyed"):
            await box.run(["true"])
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_errors_are_classified_by_what_was_asked(peer_box):
    async with peer_box() as (box, peer):

        async def answered(action, number, what):
            call = asyncio.ensure_future(action)
            channel, *_ = await peer.hear()
            await peer.error(channel, number, what, b"detail")
            return await asyncio.gather(call, return_exceptions=True)

        (error,) = await answered(box.read("/gone"), 2, b"path")
        assert isinstance(error, FileNotFoundError)
        assert error.filename == "/gone"
        (error,) = await answered(box.write("/x", b""), 28, b"write")
        assert isinstance(error, OSError)
        assert error.errno == 28
        (error,) = await answered(box.run(["true"]), 2, b"cwd")
        assert isinstance(error, Misuse)
        assert error.field == "cwd"
        (error,) = await answered(box.run(["true"]), 0, b"user")
        assert isinstance(error, Misuse)
        assert error.field == "user"
        (error,) = await answered(box.run(["true"]), 11, b"fork")
        assert isinstance(error, DriverError)
        assert (error.step, error.sandbox) == ("exec", "box-1")
        assert error.message.startswith("fork: ")
        (error,) = await answered(box.provide(80, ("127.0.0.1", 9)), 98, b"bind")
        assert isinstance(error, DriverError)
