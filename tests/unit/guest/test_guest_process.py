"""`start` with the real agent: output as it comes, input while it runs."""

import asyncio
import os
import signal

import pytest

from dutyfree.core.contract import TerminalSize
from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.guest.gather import Kept
from dutyfree.guest.process import OUTPUT_WINDOW


async def test_output_comes_while_the_command_runs(agent_box):
    async with agent_box() as box:
        process = await box.start("echo ready; read line; echo got $line; echo end >&2", stdin=None)
        chunks = aiter(process)
        assert await anext(chunks) == ("stdout", b"ready\n")
        await process.write(b"it\n")
        rest = [chunk async for chunk in chunks]
        assert sorted(rest) == [("stderr", b"end\n"), ("stdout", b"got it\n")]
        outcome = await process.wait()
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, b"", b"")
        assert await process.wait() is outcome


async def test_output_nobody_iterated_is_in_the_outcome(agent_box):
    async with agent_box() as box:
        process = await box.start("echo one; echo two >&2")
        outcome = await process.wait()
        assert (outcome.stdout, outcome.stderr) == (b"one\n", b"two\n")


async def test_a_reader_that_stops_stops_the_writer_and_can_still_kill_it(agent_box):
    async with agent_box() as box:
        process = await box.start(["yes"])
        while process._channel.output._left:
            await box.link.ping()
        assert len((await box.run(["echo", "others go on"])).stdout) == 13
        total = 0
        async for _, chunk in process:
            total += len(chunk)
            if total > 4 * OUTPUT_WINDOW:
                break
        while process._channel.output._left:
            await box.link.ping()
        await process.kill()
        assert (await process.wait()).ending == "cancelled"


async def test_a_deadline_holds_although_nobody_reads(agent_box):
    async with agent_box() as box:
        process = await box.start(["yes"], timeout_s=0.1)
        await process._channel.over
        outcome = await process.wait()
        assert outcome.ending == "timeout"
        assert outcome.stdout.startswith(b"y\ny\n")


async def test_large_output_streams_exactly(agent_box):
    async with agent_box() as box:
        process = await box.start("head -c 10000000 /dev/zero")
        assert sum([len(chunk) async for _, chunk in process]) == 10_000_000
        assert (await process.wait()).ok


async def test_large_input_given_at_once_or_written_arrives_whole(agent_box):
    data = os.urandom(3_000_000)
    async with agent_box() as box:
        process = await box.start(["cat"], stdin=data)
        assert (await process.wait()).stdout == data
        process = await box.start(["cat"], stdin=None)
        collecting = asyncio.ensure_future(process.wait())
        await process.write(data)
        await process.close_stdin()
        assert (await collecting).stdout == data


async def test_a_writer_waits_for_a_command_that_does_not_read(agent_box):
    async with agent_box() as box:
        process = await box.start(["sleep", "1000"], stdin=None)
        writing = asyncio.ensure_future(process.write(bytes(5_000_000)))
        await box.link.ping()
        assert not writing.done()
        await process.kill()
        with pytest.raises(BrokenPipeError):
            await writing


async def test_writing_to_complete_input_and_sizing_no_terminal_are_misuse(agent_box):
    async with agent_box() as box:
        process = await box.start(["cat"])
        with pytest.raises(Misuse, match="stdin=None"):
            await process.write(b"x")
        with pytest.raises(Misuse, match="terminal"):
            await process.resize(TerminalSize())
        await process.close_stdin()
        assert (await process.wait()).ok
        process = await box.start(["cat"], stdin=None)
        await process.write(b"x")
        await process.close_stdin()
        await process.close_stdin()
        with pytest.raises(Misuse):
            await process.write(b"y")
        assert (await process.wait()).stdout == b"x"


async def test_signals_reach_the_process_group(agent_box):
    async with agent_box() as box:
        process = await box.start("trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.01; done")
        chunks = aiter(process)
        assert await anext(chunks) == ("stdout", b"ready\n")
        await process.signal(signal.SIGTERM)
        outcome = await process.wait()
        assert (outcome.exit_code, outcome.stdout) == (7, b"caught\n")
        await process.signal(signal.SIGTERM)


async def test_a_terminal_has_the_size_it_was_given(agent_box):
    async with agent_box() as box:
        process = await box.start(
            "stty size; read line; stty size; test -t 1 && echo tty",
            stdin=None,
            terminal=TerminalSize(rows=30, columns=100),
        )
        chunks = aiter(process)
        assert (await anext(chunks))[1].strip() == b"30 100"
        await process.resize(TerminalSize(rows=40, columns=120))
        await process.write(b"\n")
        rest = b"".join([chunk async for _, chunk in chunks])
        assert b"40 120" in rest
        assert b"tty" in rest
        assert (await process.wait()).ok


async def test_a_deadline_ends_a_started_command(agent_box):
    async with agent_box() as box:
        process = await box.start(["sleep", "1000"], timeout_s=0.1)
        assert (await process.wait()).ending == "timeout"


async def test_a_start_that_cannot_be_is_refused_at_once(agent_box):
    async with agent_box() as box:
        with pytest.raises(Misuse) as caught:
            await box.start("true", cwd="/no/such")
        assert caught.value.field == "cwd"
        process = await box.start(["no-such-program"])
        assert (await process.wait()).exit_code == 127


async def test_two_readers_at_once_are_refused(agent_box):
    async with agent_box() as box:
        process = await box.start(["sleep", "1000"])
        waiting = asyncio.ensure_future(process.wait())
        await box.link.ping()
        with pytest.raises(Misuse):
            await anext(aiter(process))
        await process.kill()
        await waiting


async def test_a_cancelled_start_leaves_nothing(peer_box):
    async with peer_box() as (box, peer):
        starting = asyncio.ensure_future(box.start(["x"], stdin=bytes(1 << 20)))
        channel, *_ = await peer.hear()
        starting.cancel()
        while (await peer.hear())[1] != 0x16:
            pass
        await peer.say(channel, 0x21, b"late")
        await peer.exit(channel, ending=5)
        ping = asyncio.ensure_future(box.link.ping())
        channel, *_ = await peer.hear()
        await peer.say(channel, 0x51)
        await ping
        assert not box.link.channels
        with pytest.raises(asyncio.CancelledError):
            await starting


async def test_a_lost_sandbox_ends_readers_and_writers(agent_box):
    async with agent_box() as box:
        # It ends with its pipes: a killed agent that is not PID 1 takes nothing along.
        process = await box.start("read line; cat >/dev/null", stdin=None)
        reading = asyncio.ensure_future(anext(aiter(process)))
        await box.link.ping()
        box.child.kill()
        for pending in (reading, process.write(b"x"), process.wait(), process.kill(), process.signal(2)):
            with pytest.raises(SandboxLost):
                await pending


def test_kept_output_is_head_and_tail():
    kept = Kept(10)
    for piece in (b"abc", b"defgh", b"", b"ijklmnop", b"qrstuvwxyz"):
        kept.add(piece)
    assert kept.bytes() == b"abcdevwxyz"
    assert kept.omitted == 16
