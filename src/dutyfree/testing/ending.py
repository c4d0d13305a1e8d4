"""Tests that commands end as they should, and that the endings can be distinguished."""

from __future__ import annotations

import asyncio

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.testing.base import NotOffered, Suite, exists, is_gone, streams, until

LEAVE_SESSION = """
setsid sh -c 'sh -c "echo \\$\\$ >$0.part; mv $0.part $0; exec sleep 60" "$0" &' "$1"
while [ ! -e "$1" ]; do :; done
"""
"""Starts a child that leaves the session by a double fork and has written its pid to the file `$1` when this is over."""


class EndingSuite(Suite):
    async def test_a_command_that_succeeds_ends_by_exit_zero(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["true"])
        assert (outcome.ending, outcome.exit_code, outcome.signal) == ("exit", 0, None)
        assert outcome.ok

    @pytest.mark.parametrize("code", [1, 2, 124, 125, 126, 127, 128, 137, 143, 255])
    async def test_every_exit_code_is_the_commands_own(self, code: int) -> None:
        async with self.box() as box:
            outcome = await box.run(["sh", "-c", f"exit {code}"])
        assert (outcome.ending, outcome.exit_code, outcome.signal) == ("exit", code, None)
        assert not outcome.ok

    @pytest.mark.parametrize("number", [6, 9, 11, 15])
    async def test_a_signal_that_is_not_ours_is_told_apart_from_an_exit(self, number: int) -> None:
        async with self.box() as box:
            outcome = await box.run(["sh", "-c", f"kill -{number} $$"])
        assert (outcome.ending, outcome.exit_code, outcome.signal) == ("signal", None, number)

    async def test_a_deadline_ends_a_command_as_timeout(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["sleep", "60"], timeout_s=0.2)
        assert (outcome.ending, outcome.exit_code) == ("timeout", None)

    async def test_a_deadline_holds_against_a_command_that_ignores_signals(self) -> None:
        async with self.box() as box:
            outcome = await box.run("trap '' TERM INT HUP; while :; do sleep 60; done", timeout_s=0.3)
        assert outcome.ending == "timeout"

    async def test_output_before_a_deadline_is_kept(self) -> None:
        async with self.box() as box:
            outcome = await box.run("echo before; sleep 60", timeout_s=1)
        assert (outcome.ending, outcome.stdout) == ("timeout", b"before\n")

    async def test_a_command_that_ends_before_its_deadline_is_untouched(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["true"], timeout_s=30)
            assert outcome.ok
            assert (await box.run(["true"])).ok

    async def test_a_deadline_kills_the_children_too(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/pid"
            await box.mkdir(self.scratch(box))
            outcome = await box.run(f"sleep 60 & echo $! >{path}; wait", timeout_s=1)
            assert outcome.ending == "timeout"
            assert await is_gone(box, int(await box.read(path)))

    async def test_a_deadline_kills_children_that_left_the_session_by_a_double_fork(self) -> None:
        async with self.box() as box:
            if not box.capabilities.process_tree:
                raise NotOffered
            path = f"{self.scratch(box)}/pid"
            await box.mkdir(self.scratch(box))
            outcome = await box.run(["sh", "-c", f"{LEAVE_SESSION}\nsleep 60", "sh", path], timeout_s=2)
            assert outcome.ending == "timeout"
            assert await is_gone(box, int(await box.read(path)))

    async def test_what_a_command_leaves_running_is_killed_at_its_end(self) -> None:
        async with self.box() as box:
            outcome = await box.run("sleep 600 & echo $!")
            assert outcome.ok
            assert await is_gone(box, int(outcome.stdout))

    async def test_leftovers_that_left_the_session_are_killed_at_the_end(self) -> None:
        async with self.box() as box:
            if not box.capabilities.process_tree:
                raise NotOffered
            path = f"{self.scratch(box)}/pid"
            await box.mkdir(self.scratch(box))
            assert (await box.run(["sh", "-c", LEAVE_SESSION, "sh", path])).ok
            assert await is_gone(box, int(await box.read(path)))

    async def test_a_command_in_the_background_may_leave_processes_running(self) -> None:
        async with self.box() as box:
            outcome = await box.run("sleep 60 >/dev/null 2>&1 & echo $!", background=True)
            assert outcome.ok
            assert (await box.run(["kill", "-0", outcome.text().strip()])).ok

    async def test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back(self) -> None:
        async with self.box() as box:
            outcome = await box.run("sleep 60 & echo done", background=True, timeout_s=30)
        assert (outcome.ending, outcome.stdout) == ("exit", b"done\n")

    async def test_output_beyond_the_limit_is_fatal_if_asked(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["yes"], output_limit_bytes=1000, kill_on_output_limit=True, timeout_s=30)
        assert (outcome.ending, outcome.exit_code) == ("output-limit", None)
        assert len(outcome.stdout) <= 1000

    async def test_a_killed_process_ends_as_cancelled(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start(["sleep", "60"])
            await process.kill()
            assert (await process.wait()).ending == "cancelled"

    async def test_a_program_that_is_not_found_ends_with_127(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["no-such-program-anywhere"])
        assert (outcome.ending, outcome.exit_code) == ("exit", 127)

    async def test_a_file_that_is_not_executable_ends_with_126(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/plain"
            await box.write(path, b"not a program", mode=0o644)
            outcome = await box.run([path])
        assert (outcome.ending, outcome.exit_code) == ("exit", 126)

    async def test_a_directory_is_not_executable_either(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["/usr"])
        assert (outcome.ending, outcome.exit_code) == ("exit", 126)

    async def test_times_and_costs_are_told(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"])
        assert 0 < outcome.run_ns <= outcome.total_ns
        assert outcome.dispatch_ns == outcome.total_ns - outcome.run_ns
        assert outcome.cpu_ns >= 0

    async def test_cancelling_a_run_kills_it_and_leaves_the_sandbox_usable(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/pid"
            await box.mkdir(self.scratch(box))
            task = asyncio.create_task(box.run(f"echo $$ >{path}.part; mv {path}.part {path}; sleep 60"))
            await until(lambda: exists(box, path))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await is_gone(box, int(await box.read(path)))
            assert (await box.run(["true"])).ok

    async def test_a_deadline_of_nothing_is_misuse(self) -> None:
        async with self.box() as box:
            for value in (0, -1, float("nan"), float("inf"), "5", True):
                with pytest.raises(Misuse, match="timeout_s"):
                    await box.run(["true"], timeout_s=value)  # type: ignore[arg-type]
