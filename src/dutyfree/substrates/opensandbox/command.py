"""One command by `commands.run`, whose answer is a stream of events: lines of text, then how it ended.

What the text carries is `hosted.text`'s business. The answer is left as soon as it tells the end: up to version 1.0
the program in the sandbox (execd) keeps it open for one second more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from opensandbox import Sandbox
from opensandbox.models.execd import Execution as Answer
from opensandbox.models.execd import ExecutionError, ExecutionHandlers, OutputMessage
from opensandbox.models.filesystem import WriteEntry

from dutyfree.driver.exec_call import STDERR, STDOUT, ExecCall, ExecEnd, Sink
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.hosted.text import Reading, prepare
from dutyfree.substrates.opensandbox.address import NAME

_AHEAD = 16
"""Lines that may wait for their reader; the sandbox's answer waits then."""
_PRIVATE = 600
"""Of files that carry input, in digits: only the script reads them, which is root's."""
_KILLED = 137


async def run_script(sandbox: Sandbox, boundary: Boundary, wanted: ExecCall, sink: Sink) -> ExecEnd | None:
    """Run it; None if the answer ended without telling how the command did."""

    async def put(path: str, data: bytes) -> None:
        await boundary.cross(sandbox.files.write_files([WriteEntry(path=path, data=data, mode=_PRIVATE)]))

    script = await prepare(wanted, put, switch=True, paced=True)
    reading = Reading(sink, driver=NAME)
    failed: ExecEnd | None = None
    async with aclosing(_events(sandbox, boundary, script)) as events:
        async for event in events:
            if isinstance(event, ExecEnd):
                failed = event
            else:
                stream, line = event
                await reading.take(stream, f"{line}\n")
    return reading.ended or failed


async def _events(sandbox: Sandbox, boundary: Boundary, script: str) -> AsyncGenerator[tuple[int, str] | ExecEnd, None]:
    """The lines of both streams; an `ExecEnd` only if the script itself failed."""
    said: asyncio.Queue[tuple[int, str] | ExecEnd | None] = asyncio.Queue(_AHEAD)

    async def out(message: OutputMessage) -> None:
        await said.put((STDOUT, message.text))

    async def err(message: OutputMessage) -> None:
        await said.put((STDERR, message.text))

    async def fail(error: ExecutionError) -> None:
        await said.put(_ended(error))
        await said.put(None)

    async def complete(_: Any) -> None:
        await said.put(None)

    handlers = ExecutionHandlers(
        on_stdout=out, on_stderr=err, on_error=fail, on_execution_complete=complete, skip_accumulation=True
    )
    call = asyncio.ensure_future(boundary.cross(sandbox.commands.run(script, handlers=handlers)))
    try:
        while (event := await _next(said, call)) is not None:
            yield event
    finally:
        call.cancel()
        await asyncio.wait({call})
        if not call.cancelled():
            call.exception()


async def _next(
    said: asyncio.Queue[tuple[int, str] | ExecEnd | None], call: asyncio.Future[Answer]
) -> tuple[int, str] | ExecEnd | None:
    """Wait for the next output; None at the end. Raises what the call raised."""
    if said.empty():
        getting = asyncio.ensure_future(said.get())
        either: set[asyncio.Future[Any]] = {getting, call}
        try:
            await asyncio.wait(either, return_when="FIRST_COMPLETED")
            if getting.done():
                return getting.result()
        finally:
            getting.cancel()
    if not said.empty():
        return said.get_nowait()
    call.result()
    return None


def _ended(error: ExecutionError) -> ExecEnd:
    """Of the script: it was killed (a negative code), or never started."""
    try:
        code = int(error.value)
    except ValueError:
        return ExecEnd(exit_code=126, refusal=error.value)
    return ExecEnd(exit_code=_KILLED if code < 0 else code & 0xFF)
