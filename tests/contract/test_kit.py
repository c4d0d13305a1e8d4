"""The conformance suite on what the kit itself does, where no engine runs: exec calls, and a sandbox that only has `run`."""

import asyncio
from typing import ClassVar

from support.directories import Directories

import dutyfree
from dutyfree import driver as kit
from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.pending import Pending
from dutyfree.testing import (
    ArgumentSuite,
    ConcurrencySuite,
    EndingSuite,
    EndOfLifeSuite,
    FileSuite,
    LifecycleSuite,
    OutputSuite,
    TransferSuite,
)

HELD_UP = "an exec call that is a program waits for the output's end, whoever keeps it open"
EXEC_GAPS = {
    "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
    "test_what_a_command_leaves_running_is_killed_at_its_end": HELD_UP,
    "test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back": HELD_UP,
}
ENDLESS = frozenset(name for name, why in EXEC_GAPS.items() if why == HELD_UP)


class TestExecCalls(
    LifecycleSuite, EndOfLifeSuite, EndingSuite, OutputSuite, ArgumentSuite, ConcurrencySuite, FileSuite, TransferSuite
):
    gaps: ClassVar[dict[str, str]] = EXEC_GAPS
    endless = ENDLESS

    def connect(self) -> Pending[Substrate]:
        return Pending(_directories(), _close)

    def scratch(self, box: Sandbox) -> str:
        return f"{box.body.place}/contract"


async def _directories() -> Substrate:
    return await kit.DriverSubstrate.open(Directories())


async def _close(substrate: Substrate) -> None:
    await substrate.close()


class RunOnly(kit.FilesByRun):
    """A sandbox whose author wrote two methods."""

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.id, self.spec, self.network = inner.id, inner.spec, inner.network
        self.timeline, self.capabilities = inner.timeline, inner.capabilities

    async def run(self, command, **options):
        return await self.inner.run(command, **options)

    async def destroy(self):
        await self.inner.destroy()


class RunOnlySubstrate(Substrate):
    """The reference's sandboxes, without their own file methods."""

    name = "run-only"
    version = "run-only 1"

    def __init__(self, host: Substrate) -> None:
        self.host = host
        self.capabilities = host.capabilities

    async def _create(self, spec):
        return RunOnly(await self.host.create(spec))

    async def close(self):
        await self.host.close()


class TestFilesByRun(FileSuite, TransferSuite):
    def connect(self) -> Pending[Substrate]:
        return Pending(_run_only(), _close)

    def scratch(self, box: Sandbox) -> str:
        return f"{box.inner.directory}/contract"


async def _run_only() -> Substrate:
    return RunOnlySubstrate(await dutyfree.connect("host"))


def test_a_sandbox_needs_no_more_than_run_and_destroy() -> None:
    class Least(Sandbox):
        run = RunOnly.run
        destroy = RunOnly.destroy

    async def main() -> None:
        async with dutyfree.connect("host") as host:
            box = Least()
            box.inner = await host.create()
            box.id, box.capabilities = box.inner.id, box.inner.capabilities
            async with box:
                assert (await box.run(["true"])).ok
                for call in (box.read("/x"), box.write("/x", b""), box.list("/"), box.upload("/x", "/y")):
                    try:
                        await call
                    except dutyfree.Unsupported:
                        continue
                    raise AssertionError("a method that nobody wrote was offered")

    asyncio.run(main())
