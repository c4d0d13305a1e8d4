"""`run` with the real agent."""

import asyncio
import os
import signal

import pytest

from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.core.spec import Spec

ENDS_WITH_THE_AGENT = ["yes"]
"""By a broken pipe: a killed agent that is not PID 1 takes nothing along."""


async def test_a_list_is_executed_directly(agent_box):
    async with agent_box() as box:
        outcome = await box.run(["printf", "%s|", "a b", "$HOME", "*"])
        assert (outcome.ending, outcome.exit_code, outcome.stdout) == ("exit", 0, b"a b|$HOME|*|")
        assert outcome.ok
        assert 0 < outcome.run_ns < outcome.total_ns
        assert outcome.max_rss_bytes > 0


async def test_a_string_is_a_script(agent_box):
    async with agent_box() as box:
        outcome = await box.run("echo out; echo err >&2; exit 3")
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, b"out\n", b"err\n")


async def test_streams_are_merged_in_order_when_asked(agent_box):
    async with agent_box() as box:
        outcome = await box.run("echo 1; echo 2 >&2; echo 3", merge_stderr=True)
        assert (outcome.stdout, outcome.stderr) == (b"1\n2\n3\n", b"")


async def test_cwd_and_env_hold_for_one_call_and_defaults_for_all(agent_box, tmp_path):
    spec = Spec(env={"A": "spec", "B": "spec"}, cwd="/")
    async with agent_box(spec, env={"A": "image", "C": "image"}, cwd="/usr") as box:
        outcome = await box.run("echo $A $B $C; pwd", env={"B": "call"}, cwd=str(tmp_path))
        assert outcome.stdout == f"spec call image\n{tmp_path}\n".encode()
        assert (await box.run("echo $A $B $C; pwd")).stdout == b"spec spec image\n/\n"


async def test_names_that_are_not_utf8_pass_unchanged(agent_box):
    raw = b"\xff\xfe\x80x"
    text = os.fsdecode(raw)
    async with agent_box() as box:
        outcome = await box.run(["sh", "-c", 'printf %s "$0$V"', text], env={"V": text})
        assert outcome.stdout == raw + raw


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 262_144, 262_145, 5_000_000])
async def test_input_of_any_size_arrives_whole(agent_box, size):
    data = os.urandom(size)
    async with agent_box() as box:
        assert (await box.run(["cat"], stdin=data)).stdout == data


async def test_a_command_that_ignores_a_large_input_still_ends(agent_box):
    async with agent_box() as box:
        outcome = await box.run(["true"], stdin=bytes(5_000_000))
        assert outcome.exit_code == 0
        assert (await box.run(["echo", "next"])).stdout == b"next\n"


async def test_output_over_the_limit_keeps_head_and_tail(agent_box):
    async with agent_box() as box:
        outcome = await box.run("seq 1 100000", output_limit_bytes=1000)
        assert outcome.truncated
        assert len(outcome.stdout) == 1000
        assert outcome.stdout.startswith(b"1\n2\n3\n")
        assert outcome.stdout.endswith(b"99999\n100000\n")
        assert outcome.omitted_bytes == 588_895 - 1000


async def test_output_over_the_limit_can_be_fatal(agent_box):
    async with agent_box() as box:
        outcome = await box.run("yes", output_limit_bytes=1000, kill_on_output_limit=True, timeout_s=60)
        assert outcome.ending == "output-limit"
        assert len(outcome.stdout) <= 1000


async def test_no_output_at_all_may_be_kept(agent_box):
    async with agent_box() as box:
        outcome = await box.run("seq 1 100000", output_limit_bytes=0)
        assert (outcome.ending, outcome.stdout, outcome.truncated) == ("exit", b"", True)


async def test_large_output_is_exact(agent_box):
    async with agent_box() as box:
        outcome = await box.run("head -c 20000000 /dev/zero | tr '\\0' x", output_limit_bytes=20_000_000)
        assert outcome.stdout == b"x" * 20_000_000


async def test_a_timeout_is_an_ending(agent_box):
    async with agent_box() as box:
        outcome = await box.run("echo before; sleep 100", timeout_s=0.2)
        assert (outcome.ending, outcome.exit_code, outcome.stdout) == ("timeout", None, b"before\n")
        assert outcome.signal == signal.SIGKILL


async def test_a_signal_is_an_ending_and_an_exit_code_like_one_is_not(agent_box):
    async with agent_box() as box:
        killed = await box.run("kill -TERM $$")
        assert (killed.ending, killed.signal, killed.exit_code) == ("signal", signal.SIGTERM, None)
        assert (await box.run("exit 143")).exit_code == 143


async def test_a_program_that_is_not_there_is_127(agent_box):
    async with agent_box() as box:
        outcome = await box.run(["no-such-program"])
        assert outcome.exit_code == 127
        assert b"no-such-program" in outcome.stderr
        assert len((await box.run(["no-such-program"], output_limit_bytes=10)).stderr) <= 10


async def test_many_commands_run_at_once(agent_box):
    async with agent_box() as box:
        outcomes = await asyncio.gather(*(box.run(["echo", str(i)]) for i in range(64)))
        assert [outcome.stdout for outcome in outcomes] == [f"{i}\n".encode() for i in range(64)]


@pytest.mark.parametrize("field", ["cwd", "user"])
async def test_a_place_or_user_the_sandbox_does_not_know_is_misuse(agent_box, field):
    async with agent_box() as box:
        with pytest.raises(Misuse) as caught:
            await box.run(["true"], **{field: "/no/such"})
        assert caught.value.field == field
        assert (await box.run(["true"])).ok


async def test_a_cancelled_command_dies_with_its_tree_and_leaves_no_channel(agent_box, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    nap = f"1000.{os.getpid()}"
    async with agent_box() as box:
        call = asyncio.ensure_future(box.run(f"echo started > {fifo}; setsid sleep {nap}"))
        await asyncio.to_thread(fifo.read_text)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await box.link.ping()
        while box.link.channels:
            await box.link.ping()
        assert (await box.run(f"ps -eo args | grep -c '[s]leep {nap}'")).stdout == b"0\n"


@pytest.mark.parametrize("turns", range(12))
async def test_cancelling_at_any_await_leaves_nothing(agent_box, tmp_path, turns):
    async def watched(box):
        process = await box.start(["cat"], stdin=None)
        await process.write(b"x" * 100_000)
        await process.close_stdin()
        async for _ in process:
            pass
        await process.wait()

    async def shelled(box):
        async with await box.shell() as shell:
            await shell.run("sleep 0.01", timeout_s=5)

    actions = [
        lambda box: box.run("sleep 0.01", stdin=bytes(400_000), timeout_s=5),
        watched,
        shelled,
        lambda box: box.write(f"{tmp_path}/f", bytes(2_000_000)),
        lambda box: box.stat("/"),
        lambda box: box.provide(0, ("127.0.0.1", 9)),
    ]
    async with agent_box() as box:
        before = len(os.listdir("/proc/self/fd"))
        for action in actions:
            call = asyncio.ensure_future(action(box))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            for channel in [*box.link.channels.values()]:
                box.link.abandon(channel)
            while box.link.channels:
                await box.link.ping()
        assert len(os.listdir("/proc/self/fd")) == before
        assert (await box.run(["echo", "well"])).stdout == b"well\n"


async def test_a_dead_agent_fails_pending_and_later_calls(agent_box):
    async with agent_box() as box:
        call = asyncio.ensure_future(box.run(ENDS_WITH_THE_AGENT))
        await box.link.ping()
        box.child.kill()
        with pytest.raises(SandboxLost, match="gone"):
            await call
        for later in (box.run(["true"]), box.read("/etc/hostname"), box.shell(), box.start(["true"]), box.list("/")):
            with pytest.raises(SandboxLost):
                await later
        await asyncio.gather(box.destroy(), box.destroy())
        await box.destroy()


async def test_the_driver_is_asked_why_the_sandbox_died(agent_box):
    async def reason():
        return "its lifetime was over"

    async with agent_box(reason=reason) as box:
        call = asyncio.ensure_future(box.run(ENDS_WITH_THE_AGENT))
        await box.link.ping()
        box.child.kill()
        with pytest.raises(SandboxLost, match="its lifetime was over"):
            await call


async def test_destroying_ends_what_is_running(agent_box):
    async with agent_box() as box:
        call = asyncio.ensure_future(box.run(["sleep", "100"]))
        await box.link.ping()
        await box.destroy()
        with pytest.raises(SandboxLost, match="destroyed"):
            await call
        assert [span.name for span in box.timeline.spans] == ["destroy"]


@pytest.mark.parametrize("limit", [0, 1, 100, 20_000])
async def test_both_streams_tell_where_their_gaps_are(agent_box, limit):
    wholes = b"".join(b"%d\n" % n for n in range(1, 5001)), b"".join(b"%d\n" % n for n in range(6000, 9001))
    async with agent_box() as box:
        outcome = await box.run("seq 5000; seq 6000 9000 >&2", output_limit_bytes=limit)
    out = outcome.stdout, outcome.stdout_gap, outcome.stdout_omitted_bytes
    err = outcome.stderr, outcome.stderr_gap, outcome.stderr_omitted_bytes
    for whole, (kept, gap, omitted) in zip(wholes, (out, err), strict=True):
        assert len(kept) + omitted == len(whole)
        assert (gap is not None) == (omitted > 0)
        assert whole == kept or (whole.startswith(kept[:gap]) and whole.endswith(kept[gap:]))


async def test_an_agent_that_left_out_more_of_stderr_than_of_both_is_refused(peer_box):
    async with peer_box() as (box, peer):
        running = asyncio.ensure_future(box.run("x"))
        channel, *_ = await peer.hear()
        await peer.exit(channel, flags=1, omitted=1, stderr_omitted=2)
        with pytest.raises(SandboxLost, match="no command can reach"):
            await running
