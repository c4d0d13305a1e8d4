"""An exec call as the agent's stream, with the real agent: what any library that carries a command's streams can carry."""

import asyncio

from dutyfree.core.spec import Spec
from dutyfree.substrates.api.execution import Ended, Execution
from dutyfree.substrates.api.streamed import streamed
from dutyfree.substrates.boot import Birth, agent_program, boot_agent
from dutyfree.substrates.embedded.feed import PIECE, feed, has_input
from dutyfree.substrates.embedded.stream import Line
from dutyfree.substrates.microsandbox.driver import AGENT


async def execute(wanted, sink):
    """An exec call that is a program of this machine."""
    return Ended(exit_code=await streamed(wanted.argv, wanted, sink))


def test_the_agent_answers_over_an_exec_call_and_ends_with_it():
    async def main():
        line = Line(execute, [str(agent_program("test"))])
        birth = Birth(
            driver="test", id="dutyfree-test", spec=Spec(), capabilities=AGENT, release=line.close, failure=line.reason
        )
        box = await boot_agent(birth, line.ours)
        out = await box.run(["sh", "-c", "cat; printf '\\377' >&2; exit 3"], stdin=bytes(range(256)) * 1000)
        large = await box.run(["head", "-c", "3000000", "/dev/zero"])
        await box.destroy()
        return out, large, line

    out, large, line = asyncio.run(main())
    assert (out.exit_code, out.stdout, out.stderr) == (3, bytes(range(256)) * 1000, b"\xff")
    assert len(large.stdout) == 3_000_000
    assert line._call.done()


def test_a_program_that_does_not_start_is_told_in_its_own_words():
    async def main():
        line = Line(execute, ["sh", "-c", "echo no agent here >&2; exit 4"])
        assert await asyncio.get_running_loop().run_in_executor(None, line.ours.recv, 1) == b""
        await asyncio.wait({line._call})
        said = await line.reason()
        await line.close()
        line.ours.close()
        return said

    assert asyncio.run(main()) == "no agent here"


def test_input_goes_in_pieces_in_order_and_then_ends():
    sent: list[bytes] = []

    async def write(data):
        sent.append(data)

    async def close():
        sent.append(b"end")

    async def given():
        yield b"first"
        yield b"x" * (PIECE + 1)

    async def main():
        await feed(Execution(argv=["x"], stdin=given()), write, close)

    asyncio.run(main())
    assert [len(piece) for piece in sent] == [5, PIECE, 1, 3]
    assert not has_input(Execution(argv=["x"]))
    assert has_input(Execution(argv=["x"], stdin=given()))
