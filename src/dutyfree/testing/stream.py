"""Commands that are watched while they run: output as it comes, input, signals, terminals."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

import pytest

from dutyfree.core.contract import Process, Sandbox, TerminalSize
from dutyfree.core.errors import Misuse
from dutyfree.testing.base import Suite, declines, streams


async def everything(process: Process) -> dict[str, bytes]:
    """All output, by stream."""
    found = {"stdout": b"", "stderr": b""}
    async for name, data in process:
        found[name] += data
    return found


async def heard(process: Process, line: bytes) -> None:
    """Wait for exactly these bytes; a terminal may hand them out in pieces."""
    said = b""
    while len(said) < len(line):
        said += (await anext(aiter(process)))[1]
    assert said == line


async def terminal(box: Sandbox) -> None:
    """Go on only if there are terminals."""
    await streams(box)
    if not box.capabilities.terminal:
        await declines(lambda: box.start(["true"], terminal=TerminalSize()))


class StreamSuite(Suite):
    async def test_output_comes_before_the_command_ends(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start("echo first; read line; echo got $line", stdin=None)
            first = await anext(aiter(process))
            assert first == ("stdout", b"first\n")
            await process.write(b"input\n")
            await process.close_stdin()
            assert (await everything(process))["stdout"] == b"got input\n"
            assert (await process.wait()).ok

    async def test_a_wait_for_output_that_is_given_up_loses_nothing(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start("read line; echo out; echo err >&2; read line; echo end", stdin=None)
            chunks = aiter(process)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(chunks), 0.01)
            await process.write(b"go\n")
            came = {"stdout": b"", "stderr": b""}
            while came != {"stdout": b"out\n", "stderr": b"err\n"}:
                with suppress(TimeoutError):
                    name, data = await asyncio.wait_for(anext(process), 0.001)
                    came[name] += data
            await process.write(b"go\n")
            assert [chunk async for chunk in chunks] == [("stdout", b"end\n")]
            assert (await process.wait()).ok

    async def test_both_streams_are_told_apart_while_they_come(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start("echo out; echo err >&2")
            assert await everything(process) == {"stdout": b"out\n", "stderr": b"err\n"}
            outcome = await process.wait()
            assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, b"", b"")

    async def test_output_nobody_iterated_is_in_the_outcome(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start("echo out; echo err >&2; exit 3")
            outcome = await process.wait()
        assert (outcome.stdout, outcome.stderr, outcome.exit_code) == (b"out\n", b"err\n", 3)

    async def test_merged_streams_come_as_one(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start("echo out; echo err >&2", merge_stderr=True)
            assert await everything(process) == {"stdout": b"out\nerr\n", "stderr": b""}
            await process.wait()

    async def test_a_reader_that_stops_stops_the_writer(self) -> None:
        async with self.box() as box:
            await streams(box)
            place = self.scratch(box)
            await box.mkdir(place)
            size = 64 << 20
            process = await box.start(f"head -c {size} /dev/zero; touch {place}/done")
            reader = aiter(process)
            taken = len((await anext(reader))[1])
            for _ in range(50):
                assert (await box.run(["test", "-e", f"{place}/done"])).exit_code == 1
            async for _, data in reader:
                taken += len(data)
            assert taken == size
            assert (await process.wait()).ok

    async def test_large_input_can_be_written_while_output_is_read(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start(["wc", "-c"], stdin=None)
            for _ in range(32):
                await process.write(b"x" * (1 << 18))
            await process.close_stdin()
            assert int((await process.wait()).stdout) == 8 << 20

    async def test_given_input_needs_no_writing(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start(["cat"], stdin=b"given")
            assert (await process.wait()).stdout == b"given"

    async def test_a_signal_reaches_the_command(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start("trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done")
            assert await anext(aiter(process)) == ("stdout", b"ready\n")
            await process.signal(signal.SIGUSR1)
            outcome = await process.wait()
        assert (outcome.exit_code, outcome.stdout) == (7, b"caught\n")

    async def test_a_signal_that_kills_is_told(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start(["sleep", "60"])
            await process.signal(signal.SIGTERM)
            outcome = await process.wait()
        assert (outcome.ending, outcome.signal) == ("signal", signal.SIGTERM)

    async def test_a_signal_that_does_not_exist_is_misuse(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start(["sleep", "60"])
            for number in (0, -1, 65):
                with pytest.raises(Misuse):
                    await process.signal(number)
            await process.kill()
            await process.wait()

    async def test_a_deadline_ends_a_watched_command(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start("echo before; sleep 60", timeout_s=0.5)
            assert (await everything(process))["stdout"] == b"before\n"
            assert (await process.wait()).ending == "timeout"

    async def test_a_watched_program_that_is_not_found_ends_with_127(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start(["no-such-program-anywhere"])
            outcome = await process.wait()
        assert (outcome.ending, outcome.exit_code) == ("exit", 127)

    async def test_killing_twice_and_after_the_end_is_fine(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start(["true"])
            assert (await process.wait()).ok
            await process.kill()
            await process.kill()

    async def test_a_terminal_is_one(self) -> None:
        async with self.box() as box:
            await terminal(box)
            process = await box.start(
                "test -t 0 && test -t 1 && test -t 2 && stty size", terminal=TerminalSize(rows=11, columns=42)
            )
            outcome = await process.wait()
        assert (outcome.exit_code, outcome.stdout) == (0, b"11 42\r\n")

    async def test_a_terminal_can_be_resized(self) -> None:
        async with self.box() as box:
            await terminal(box)
            script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
            process = await box.start(script, terminal=TerminalSize(), timeout_s=30)
            await heard(process, b"ready\r\n")
            await process.resize(TerminalSize(rows=33, columns=99))
            assert (await process.wait()).stdout == b"33 99\r\n"

    async def test_a_terminals_interrupt_key_works(self) -> None:
        async with self.box() as box:
            await terminal(box)
            process = await box.start("echo ready; sleep 60", stdin=None, terminal=TerminalSize(), timeout_s=30)
            await heard(process, b"ready\r\n")
            await process.write(b"\x03")
            outcome = await process.wait()
        assert outcome.ending in ("signal", "exit")
        assert not outcome.ok
