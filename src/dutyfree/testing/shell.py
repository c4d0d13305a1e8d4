"""Persistent shells."""

from __future__ import annotations

import asyncio

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.testing.base import Suite, exists, is_gone, shell_of, until


class ShellSuite(Suite):
    async def test_the_working_directory_survives_between_scripts(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            assert (await shell.run("cd /usr")).ok
            assert (await shell.run("pwd")).stdout == b"/usr\n"

    async def test_variables_and_functions_survive_between_scripts(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            await shell.run("a=1; export B=2; f() { echo f$1; }")
            assert (await shell.run('echo $a; sh -c "echo \\$B"; f 3')).stdout == b"1\n2\nf3\n"

    async def test_each_script_has_its_own_output_and_exit_code(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            first = await shell.run("echo out; echo err >&2; (exit 3)")
            second = await shell.run("true")
        assert (first.stdout, first.stderr, first.exit_code) == (b"out\n", b"err\n", 3)
        assert (second.stdout, second.stderr, second.exit_code) == (b"", b"", 0)

    async def test_a_script_may_have_many_lines_quotes_and_comments(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            outcome = await shell.run("# a comment\nfor i in 1 2\ndo\n  echo \"it's $i\"\ndone\ncat <<'END'\n$x\nEND\n")
        assert outcome.stdout == b"it's 1\nit's 2\n$x\n"

    async def test_output_without_a_newline_and_strange_bytes_pass(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            assert (await shell.run("printf 'a\\000\\377b'")).stdout == b"a\x00\xffb"

    async def test_large_output_is_whole(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            outcome = await shell.run("head -c 3000000 /dev/zero; echo end", timeout_s=60)
            assert len(outcome.stdout) == 3_000_004
            assert (await shell.run("echo next")).stdout == b"next\n"

    async def test_output_beyond_the_limit_loses_its_middle(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            outcome = await shell.run("printf HEAD; head -c 100000 /dev/zero; printf TAIL", output_limit_bytes=100)
        assert outcome.truncated
        assert outcome.stdout.startswith(b"HEAD")
        assert outcome.stdout.endswith(b"TAIL")

    async def test_a_syntax_error_is_an_outcome_and_the_shell_lives(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            outcome = await shell.run("if then (")
            assert outcome.ending == "exit"
            assert outcome.exit_code != 0
            assert outcome.stderr
            assert (await shell.run("echo alive")).stdout == b"alive\n"

    async def test_exit_ends_the_shell_with_its_code(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            assert shell.alive
            outcome = await shell.run("echo bye; exit 7")
            assert (outcome.ending, outcome.exit_code, outcome.stdout) == ("exit", 7, b"bye\n")
            assert not shell.alive
            with pytest.raises(Misuse):
                await shell.run("true")

    async def test_a_command_that_reads_input_gets_what_was_given_and_no_script(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            assert (await shell.run("cat", timeout_s=30)).stdout == b""
            outcome = await shell.run("read a; echo got $a; cat", stdin=b"one\ntwo\n", timeout_s=30)
            assert outcome.stdout == b"got one\ntwo\n"
            assert (await shell.run("echo next")).stdout == b"next\n"

    async def test_a_deadline_kills_what_the_script_started_and_keeps_the_shell(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            await shell.run("cd /usr; a=1")
            outcome = await shell.run("sleep 60; echo after", timeout_s=0.5)
            assert outcome.ending == "timeout"
            assert b"after" not in outcome.stdout
            assert (await shell.run("echo $a $PWD", timeout_s=30)).stdout == b"1 /usr\n"

    async def test_an_interrupt_stops_the_script_and_keeps_the_shell(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            path = f"{self.scratch(box)}/started"
            await box.mkdir(self.scratch(box))
            await shell.run("a=1")
            # One child, made before the file: an interrupt that meets a child about to end well does not stop a shell.
            stuck = asyncio.create_task(shell.run(f"sh -c ': >{path}; exec sleep 60'; echo after"))
            await until(lambda: exists(box, path))
            await shell.interrupt()
            outcome = await stuck
            assert not outcome.ok
            assert b"after" not in outcome.stdout
            assert shell.alive
            assert (await shell.run("echo $a")).stdout == b"1\n"

    async def test_an_interrupt_stops_a_loop_of_the_shell_itself(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            path = f"{self.scratch(box)}/started"
            await box.mkdir(self.scratch(box))
            stuck = asyncio.create_task(shell.run(f": >{path}; while :; do :; done"))
            await until(lambda: exists(box, path))
            await shell.interrupt()
            assert not (await stuck).ok
            assert (await shell.run("echo alive")).stdout == b"alive\n"

    async def test_an_interrupt_of_an_idle_shell_changes_nothing(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            await shell.interrupt()
            for turn in range(6):
                outcome = await shell.run(f"echo {turn}; (exit {turn})", timeout_s=30)
                assert (outcome.stdout, outcome.exit_code) == (b"%d\n" % turn, turn)
                await shell.interrupt()
                await shell.interrupt()

    async def test_an_interrupt_at_any_moment_never_ends_another_script(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            for turn in range(20):
                script = asyncio.create_task(shell.run("true", timeout_s=30))
                for _ in range(turn):
                    await asyncio.sleep(0)
                await shell.interrupt()
                assert (await script).stderr == b""
                outcome = await shell.run(f"echo {turn}; (exit 3)", timeout_s=30)
                assert (outcome.stdout, outcome.exit_code) == (b"%d\n" % turn, 3)

    async def test_a_cancelled_script_is_stopped(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            path = f"{self.scratch(box)}/pid"
            await box.mkdir(self.scratch(box))
            script = f"sh -c 'echo $$ >{path}.part; mv {path}.part {path}; exec sleep 60'"
            task = asyncio.create_task(shell.run(script))
            await until(lambda: exists(box, path))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await is_gone(box, int(await box.read(path)))

    async def test_two_shells_do_not_share_their_state(self) -> None:
        async with self.box() as box, await shell_of(box) as one, await shell_of(box) as other:
            await one.run("cd /usr; a=1")
            await other.run("cd /; a=2")
            assert (await one.run("echo $PWD $a")).stdout == b"/usr 1\n"
            assert (await other.run("echo $PWD $a")).stdout == b"/ 2\n"

    async def test_a_shell_starts_where_and_with_what_it_is_told(self) -> None:
        async with self.box() as box:
            (await (await shell_of(box)).close())
            async with await box.shell(cwd="/usr", env={"A": "x"}) as shell:
                assert (await shell.run("echo $PWD $A")).stdout == b"/usr x\n"

    async def test_closing_a_shell_kills_what_it_left_running(self) -> None:
        async with self.box() as box:
            shell = await shell_of(box)
            outcome = await shell.run("sleep 60 >/dev/null 2>&1 & echo $!")
            await shell.close()
            await shell.close()
            assert not shell.alive
            assert await is_gone(box, int(outcome.stdout))

    async def test_a_script_that_is_none_is_misuse(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            for script in ("a\0b", b"true", None):
                with pytest.raises(Misuse):
                    await shell.run(script)  # type: ignore[arg-type]
            with pytest.raises(Misuse):
                await shell.run("true", timeout_s=0)
            assert (await shell.run("true")).ok

    async def test_a_script_can_be_watched_while_it_runs(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            assert (await shell.run("word=kept")).ok
            async with await shell.start(
                "echo first; read -r line; echo $line $word >&2; word=new", stdin="in"
            ) as process:
                came = {"stdout": b"", "stderr": b""}
                async for name, data in process:
                    came[name] += data
                assert came == {"stdout": b"first\n", "stderr": b"in kept\n"}
                assert (await process.wait()).ok
            assert (await shell.run("echo $word")).stdout == b"new\n"

    async def test_output_of_a_watched_script_comes_before_its_end(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            process = await shell.start("echo first; while :; do sleep 0.05; done", timeout_s=120)
            assert await anext(aiter(process)) == ("stdout", b"first\n")
            with pytest.raises(Misuse, match="one at a time"):
                await shell.run("true")
            await shell.interrupt()
            assert (await process.wait()).exit_code == 130
            assert (await shell.run("echo alive")).stdout == b"alive\n"

    async def test_a_watched_script_is_killed_with_its_block_and_may_end_its_shell(self) -> None:
        async with self.box() as box, await shell_of(box) as shell:
            async with await shell.start("sleep 1000") as process:
                pass
            assert (await process.wait()).ending == "cancelled"
            process = await shell.start("exit 3")
            assert (await process.wait()).exit_code == 3
            assert not shell.alive
