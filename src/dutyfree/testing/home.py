"""The process and the event loop that a substrate belongs to: any other one is refused, and disturbs nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.guest.thread import in_thread
from dutyfree.testing.base import Suite, shell_of, streams

Call = Callable[[], Coroutine[Any, Any, object]]


class HomeSuite(Suite):
    async def test_a_forked_child_is_refused_and_ends_nothing(self) -> None:
        async with self.box() as box:
            for thing, name, argument in (
                (box, "run", ["true"]),
                (box, "read", "/etc/passwd"),
                (self.substrate, "create", self.spec()),
            ):
                assert await said_by_child(thing, name, argument) == "connect in this process"
            assert await said_by_child(box, "destroy") == "nothing"
            assert await said_by_child(self.substrate, "close") == "nothing"
            assert (await box.run("echo here")).stdout == b"here\n"
            async with self.box() as other:
                assert (await other.run(["true"])).ok

    async def test_a_forked_child_cannot_reach_a_process_or_a_shell(self) -> None:
        async with self.box() as box:
            await streams(box)
            process = await box.start(["cat"], stdin=None)
            shell = await shell_of(box)
            for thing, name, arguments in (
                (process, "write", (b"no",)),
                (process, "kill", ()),
                (process, "wait", ()),
                (shell, "run", ("exit",)),
            ):
                assert await said_by_child(thing, name, *arguments) == "connect in this process"
            await process.write(b"yes")
            await process.close_stdin()
            assert (await process.wait()).stdout == b"yes"
            assert (await shell.run("echo here")).stdout == b"here\n"
            await shell.close()

    async def test_another_event_loop_is_refused(self) -> None:
        async with self.box() as box:
            calls: list[Call] = [
                lambda: box.run(["true"]),
                lambda: box.read("/etc/passwd"),
                box.destroy,
                lambda: _entered(self.substrate.create(self.spec())),
            ]
            for call in calls:
                with pytest.raises(Misuse, match="another event loop"):
                    await in_thread(asyncio.run, call())
            assert (await box.run("echo here")).stdout == b"here\n"


async def said_by_child(thing: object, name: str, *arguments: object) -> str:
    """Call a method in a forked child and report: `nothing`, the end of a `Misuse`, or `another error`."""
    assert threading.current_thread() is threading.main_thread()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        _answer(lambda: _called(thing, name, arguments), writer)
    os.close(writer)
    try:
        said = await in_thread(os.read, reader, 1000)
    finally:
        os.close(reader)
        os.waitpid(pid, 0)  # noqa: ASYNC222 - it has answered and exits
    return said.decode()


def _answer(call: Call, writer: int) -> NoReturn:
    """In the child: call, collect what is garbage, say how it went, and leave."""
    said = "another error"
    try:
        asyncio.run(call())
        said = "nothing"
    except Misuse as error:
        said = error.message.rpartition(": ")[2]
        gc.collect()
    finally:
        os.write(writer, said.encode())
        os._exit(0)


async def _called(thing: object, name: str, arguments: tuple[object, ...]) -> None:
    await getattr(thing, name)(*arguments)


async def _entered(pending: Any) -> None:
    async with pending:
        pass
