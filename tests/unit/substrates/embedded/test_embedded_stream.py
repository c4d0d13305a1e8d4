"""An exec call as the agent's stream, with the real agent: what any library that carries a command's streams can carry."""

import asyncio

from dutyfree.core.spec import Spec
from dutyfree.substrates.api.execution import Ended
from dutyfree.substrates.api.streamed import streamed
from dutyfree.substrates.boot import Birth, agent_program
from dutyfree.substrates.hosted.agent import boot_by_exec
from dutyfree.substrates.microsandbox.driver import AGENT


async def execute(wanted, sink):
    """An exec call that is a program of this machine."""
    return Ended(exit_code=await streamed(wanted.argv, wanted, sink))


def test_the_agent_answers_over_an_exec_call_and_ends_with_it():
    released = []

    async def release():
        released.append("once")

    async def main():
        birth = Birth(driver="test", id="dutyfree-test", spec=Spec(), capabilities=AGENT, release=release)
        box = await boot_by_exec(birth, execute, str(agent_program("test")))
        out = await box.run(["sh", "-c", "cat; printf '\\377' >&2; exit 3"], stdin=bytes(range(256)) * 1000)
        large = await box.run(["head", "-c", "3000000", "/dev/zero"])
        await box.destroy()
        return out, large

    out, large = asyncio.run(main())
    assert (out.exit_code, out.stdout, out.stderr) == (3, bytes(range(256)) * 1000, b"\xff")
    assert len(large.stdout) == 3_000_000
    assert released == ["once"]
