"""A vendor on paper: machines are entries of a dictionary, and commands exit with 0."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from dutyfree.core.contract import Capabilities
from dutyfree.core.errors import DutyfreeError, Unavailable
from dutyfree.core.spec import Spec
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink
from dutyfree.substrates.hosted.substrate import HostedSubstrate

CAPABILITIES = Capabilities(
    isolation="vm",
    dispatch="api",
    networks=frozenset({"none", "host"}),
    storages=frozenset({"memory"}),
    users=True,
    process_tree=True,
)


class PaperMachine:
    defaults = ImageDefaults()

    def __init__(self, vendor: "Paper", number: str) -> None:
        self.vendor = vendor
        self.id = number
        self.extensions: list[float] = []
        self.extended = asyncio.Event()
        self.fails: DutyfreeError | None = None

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        return ExecEnd(exit_code=0)

    async def extend(self, ttl_s: float) -> None:
        self.extensions.append(ttl_s)
        self.extended.set()
        if self.fails is not None:
            raise self.fails

    async def end(self) -> None:
        await self.vendor.end(self.id)


class Paper:
    version = "paper 1"

    def __init__(self) -> None:
        self.machines: dict[str, PaperMachine] = {}
        self.marks: dict[str, Mapping[str, str]] = {}
        self.ttls: list[float] = []
        self.starting = asyncio.Event()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.closed = False
        self.refuses: set[str] = set()
        self.fails: Callable[[], DutyfreeError] | None = None

    async def start(self, spec: Spec, marks: Mapping[str, str], ttl_s: float) -> PaperMachine:
        self.starting.set()
        await self.may_start.wait()
        if self.fails is not None:
            raise self.fails()
        self.ttls.append(ttl_s)
        number = str(len(self.marks))
        self.marks[number] = marks
        self.machines[number] = PaperMachine(self, number)
        return self.machines[number]

    async def marked(self, key: str) -> Mapping[str, str]:
        return {number: self.marks[number].get(key, "") for number in self.machines}

    async def end(self, machine_id: str) -> None:
        if machine_id in self.refuses:
            raise Unavailable("not now")
        self.machines.pop(machine_id, None)

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def paper(vendor: Paper, ttl_s: float = 300.0) -> AsyncIterator[HostedSubstrate]:
    substrate = HostedSubstrate("paper", vendor, CAPABILITIES, ttl_s)
    try:
        yield substrate
    finally:
        await substrate.close()
