"""Persistent shells with the real agent."""

import asyncio
import os

import pytest

from dutyfree.core.errors import Misuse, SandboxLost


async def test_directory_variables_and_functions_survive(agent_box, tmp_path):
    async with agent_box() as box, await box.shell(env={"GIVEN": "yes"}) as shell:
        await shell.run(f"cd {tmp_path}; export A=1; B=2; f() {{ echo called $1; }}")
        outcome = await shell.run("pwd; echo $A$B$GIVEN; f x")
        assert outcome.stdout == f"{tmp_path}\n12yes\ncalled x\n".encode()
        assert shell.alive


async def test_each_run_has_its_own_outcome(agent_box):
    async with agent_box() as box, await box.shell() as shell:
        assert (await shell.run("false")).exit_code == 1
        outcome = await shell.run("echo out; echo err >&2; (exit 5)")
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (5, b"out\n", b"err\n")
        assert (await shell.run("if")).exit_code not in (0, None)
        assert (await shell.run("echo $?; echo fine")).stdout.endswith(b"fine\n")


async def test_input_reaches_the_script(agent_box):
    data = os.urandom(1_000_000)
    too_much = bytes(2_000_000)
    async with agent_box() as box, await box.shell() as shell:
        assert (await shell.run("cat", stdin=b"small")).stdout == b"small"
        assert (await shell.run("cat", stdin=data)).stdout == data
        assert (await shell.run("cat")).stdout == b""
        with pytest.raises(Misuse) as caught:
            await shell.run("cat", stdin=too_much)
        assert caught.value.field == "stdin"


async def test_exit_ends_the_shell_and_further_runs_are_misuse(agent_box):
    async with agent_box() as box, await box.shell() as shell:
        assert (await shell.run("exit 4")).exit_code == 4
        assert not shell.alive
        with pytest.raises(Misuse, match="ended"):
            await shell.run("true")


async def test_a_timeout_leaves_the_shell_usable(agent_box):
    async with agent_box() as box, await box.shell() as shell:
        await shell.run("X=kept")
        assert (await shell.run("sleep 1000", timeout_s=0.2)).ending == "timeout"
        if shell.alive:
            assert (await shell.run("echo $X")).stdout == b"kept\n"


async def test_an_interrupt_stops_the_script_and_keeps_the_shell(agent_box, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with agent_box() as box, await box.shell() as shell:
        running = asyncio.ensure_future(shell.run(f"X=1; sh -c 'echo go > {fifo}; exec sleep 1000'"))
        await asyncio.to_thread(fifo.read_text)
        with pytest.raises(Misuse, match="one at a time"):
            await shell.run("true")
        await shell.interrupt()
        assert not (await running).ok
        assert (await shell.run("echo $X")).stdout == b"1\n"


async def test_a_cancelled_run_is_over_before_the_next_one_starts(agent_box, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with agent_box() as box, await box.shell() as shell:
        running = asyncio.ensure_future(shell.run(f"echo go > {fifo}; sleep 1000"))
        await asyncio.to_thread(fifo.read_text)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        if shell.alive:
            assert (await shell.run("echo next")).stdout == b"next\n"


async def test_closing_twice_is_fine_and_shells_are_apart(agent_box):
    async with agent_box() as box:
        one, two = await box.shell(), await box.shell()
        await one.run("X=1")
        assert (await two.run("echo $X")).stdout == b"\n"
        await asyncio.gather(one.close(), one.close())
        await one.close()
        assert not one.alive
        await two.close()


async def test_a_lost_sandbox_ends_shells(agent_box):
    async with agent_box() as box:
        shell = await box.shell()
        # It ends by a broken pipe: a killed agent that is not PID 1 takes nothing along.
        running = asyncio.ensure_future(shell.run("yes"))
        await box.link.ping()
        box.child.kill()
        with pytest.raises(SandboxLost):
            await running
        with pytest.raises(SandboxLost):
            await shell.run("true")
        assert not shell.alive
        await shell.close()


async def test_a_script_is_watched_and_its_shell_goes_on(agent_box):
    async with agent_box() as box, await box.shell() as shell:
        assert (await shell.run("word=kept")).ok
        async with await shell.start("echo first; read -r line; echo $line $word >&2; word=new", stdin="in") as process:
            came = {"stdout": b"", "stderr": b""}
            async for name, data in process:
                came[name] += data
            assert came == {"stdout": b"first\n", "stderr": b"in kept\n"}
            assert (await process.wait()).ok
        assert (await shell.run("echo $word")).stdout == b"new\n"


async def test_a_watched_script_takes_its_turn_is_interrupted_killed_or_ends_the_shell(agent_box):
    async with agent_box() as box, await box.shell() as shell:
        process = await shell.start("echo first; sleep 1000", timeout_s=120)
        assert await anext(aiter(process)) == ("stdout", b"first\n")
        with pytest.raises(Misuse, match="one at a time"):
            await shell.run("true")
        await shell.interrupt()
        assert (await process.wait()).exit_code == 130
        async with await shell.start("sleep 1000") as process:
            pass
        assert (await process.wait()).ending == "cancelled"
        assert (await (await shell.start("seq 3", timeout_s=9)).wait()).stdout == b"1\n2\n3\n"
        assert (await (await shell.start("exit 3")).wait()).exit_code == 3
        assert not shell.alive


async def test_a_watched_script_that_is_too_long_is_misuse(agent_box):
    async with agent_box() as box, await box.shell() as shell:
        with pytest.raises(Misuse, match="a request holds"):
            await shell.start("#" * (8 << 20))
