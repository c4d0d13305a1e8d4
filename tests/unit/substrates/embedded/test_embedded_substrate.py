"""The substrate over a library, with one whose machines are plain programs of this machine: what it starts, it ends."""

import asyncio

import pytest

from dutyfree.core.errors import DriverError
from dutyfree.core.spec import Spec
from dutyfree.substrates.api.execution import Ended
from dutyfree.substrates.api.streamed import streamed
from dutyfree.substrates.boot import Defaults, agent_program
from dutyfree.substrates.embedded.substrate import AGENT_INSIDE, EmbeddedSubstrate
from dutyfree.substrates.hosted.substrate import NAME_LABEL
from dutyfree.substrates.microsandbox.driver import AGENT, API

SPEC = Spec(image="registry.example/image:1")


class PlainLibrary:
    """Its machines have our agent's program where it shall be, unless it is asked for another one."""

    version = "plain 1"

    def __init__(self, program=None):
        self.program = program or [str(agent_program("plain"))]
        self.living = set()

    async def start(self, spec, marks, ttl_s):
        self.living.add(marks[NAME_LABEL])
        return PlainMachine(self, marks[NAME_LABEL])

    async def bring(self, image):
        return f"plain/{image.name}"

    async def marked(self, key):
        return {}

    async def end(self, machine_id):
        self.living.discard(machine_id)

    async def close(self):
        pass


class PlainMachine:
    def __init__(self, library, name):
        self.library, self.name = library, name
        self.defaults = Defaults(cwd="/")

    async def execute(self, wanted, sink):
        argv = self.library.program if list(wanted.argv) == [AGENT_INSIDE] else wanted.argv
        return Ended(exit_code=await streamed(argv, wanted, sink))

    async def extend(self, ttl_s):
        pass

    async def end(self):
        await self.library.end(self.name)


@pytest.mark.parametrize("offered", [API, AGENT], ids=lambda one: one.dispatch)
def test_what_it_starts_it_ends_by_destroying_and_by_closing(offered):
    async def main():
        library = PlainLibrary()
        substrate = EmbeddedSubstrate("plain", library, offered)
        async with substrate.create(SPEC) as box:
            assert (await box.run(["echo", "hello"])).stdout == b"hello\n"
            assert len(library.living) == 1
        assert not library.living
        assert not substrate._boxes
        await substrate.create(SPEC)
        await substrate.close()
        assert not library.living

    asyncio.run(main())


def test_a_machine_in_which_the_agent_does_not_start_is_ended_and_the_reason_told():
    async def main():
        library = PlainLibrary(["sh", "-c", "echo this is no agent >&2"])
        substrate = EmbeddedSubstrate("plain", library, AGENT)
        with pytest.raises(DriverError, match="this is no agent"):
            await substrate.create(SPEC)
        assert not library.living
        await substrate.close()

    asyncio.run(main())
