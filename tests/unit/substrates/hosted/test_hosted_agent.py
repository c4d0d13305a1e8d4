"""The agent over an exec call, where that call does not go well."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from dutyfree.core.contract import Capabilities
from dutyfree.core.errors import DriverError, SandboxLost
from dutyfree.core.spec import Spec
from dutyfree.driver.agent import agent_program
from dutyfree.driver.agent_by_exec import ExecStream
from dutyfree.driver.exec_call import STDERR, STDOUT, ExecCall, ExecEnd, Execute, Sink
from dutyfree.substrates.boot import Birth
from dutyfree.substrates.hosted.agent import boot_by_exec


def booted(execute: Execute) -> list[str]:
    released: list[str] = []

    async def main() -> None:
        async def release() -> None:
            released.append("once")

        capabilities = Capabilities(
            isolation="kernel", dispatch="agent", networks=frozenset({"none"}), storages=frozenset({"memory"})
        )
        birth = Birth(driver="vendor", id="one", spec=Spec(), capabilities=capabilities, release=release)
        await boot_by_exec(birth, execute)

    try:
        asyncio.run(main())
    finally:
        assert released == ["once"]
    return released


async def given(wanted: ExecCall) -> AsyncGenerator[bytes, None]:
    assert isinstance(wanted.stdin, AsyncGenerator)
    async for piece in wanted.stdin:
        yield piece


def test_what_the_sandboxs_shell_complains_of_is_told():
    async def execute(wanted: ExecCall, sink: Sink) -> ExecEnd:
        await sink.add(STDERR, b"sh: head: not found\n")
        return ExecEnd(exit_code=127)

    with pytest.raises(DriverError, match="the agent did not start: sh: head: not found"):
        booted(execute)


def test_a_sandbox_that_is_gone_at_once_says_why():
    async def execute(wanted: ExecCall, sink: Sink) -> ExecEnd:
        raise SandboxLost("the vendor ended it")

    with pytest.raises(DriverError, match="the vendor ended it"):
        booted(execute)


def test_the_program_comes_first_and_the_stream_after_it():
    program = agent_program("vendor").read_bytes()
    took: list[bytes] = []

    async def execute(wanted: ExecCall, sink: Sink) -> ExecEnd:
        async for piece in given(wanted):
            took.append(piece)
            if piece != program:
                await sink.add(STDOUT, b"heard " + piece)
        return ExecEnd(exit_code=0)

    async def main() -> bytes:
        bridge = ExecStream(execute, ["sh"], program)
        bridge.stream.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(bridge.stream, b"hello")
        heard = await loop.sock_recv(bridge.stream, 100)
        bridge.stream.close()
        await bridge.close()
        return heard

    assert asyncio.run(main()) == b"heard hello"
    assert took == [program, b"hello"]
