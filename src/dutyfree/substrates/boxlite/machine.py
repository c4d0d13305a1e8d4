"""One machine of the library, and its exec call: two streams of text, input by a pipe, an exit code at the end.

The text has replacement characters for what is no UTF-8, so commands are carried by scripts that encode (`hosted.text`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import boxlite  # type: ignore[import-untyped] # it carries no types

from dutyfree.core.errors import DriverError, SandboxLost
from dutyfree.substrates.api.execution import STDERR, STDOUT, Ended, Execution, Sink
from dutyfree.substrates.boot import Defaults
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.hosted.text import Reading, prepare

DRIVER = "boxlite"

_PUT = 'umask 022; cat >"$0"'
_SIGNALS = 128
_NOT_STARTED = 126
_REFUSALS = (boxlite.InternalError, boxlite.ExecutionError)


class BoxliteMachine:
    """Made by `BoxliteLibrary.start`."""

    def __init__(self, box: Any, name: str, boundary: Boundary, remove: Callable[[str], Awaitable[None]]) -> None:
        self.defaults = Defaults()
        self._box = box
        self._name = name
        self._boundary = boundary
        self._remove = remove
        self._shell = "bash"

    async def execute(self, wanted: Execution, sink: Sink) -> Ended:
        """One exec call, and one before it for input that does not fit into a script."""

        async def put(path: str, data: bytes) -> None:
            execution = await self._begin(["sh", "-c", _PUT, path], wanted.user)
            pipe = execution.stdin()
            await self._boundary.cross(pipe.send_input(data))
            await self._boundary.cross(pipe.close())
            if code := (await self._boundary.cross(execution.wait())).exit_code:
                raise DriverError(f"cannot write {path}: exit code {code}", driver=DRIVER, sandbox=self._name)

        script = await prepare(wanted, put)
        reading = Reading(sink, driver=DRIVER)
        try:
            execution = await self._begin([self._shell, "-c", script], wanted.user)
        except _REFUSALS as error:
            await self._look(str(error))
            if self._shell == "sh":
                return Ended(exit_code=_NOT_STARTED, refusal=str(error))
            self._shell = "sh"
            execution = await self._begin([self._shell, "-c", script], wanted.user)
        return await self._follow(execution, reading)

    async def extend(self, ttl_s: float) -> None:
        """It lives as long as we do."""

    async def end(self) -> None:
        """Kill it."""
        await self._remove(self._name)

    async def _begin(self, argv: list[str], user: str | None) -> Any:
        call = self._box.exec(argv[0], argv[1:], None, user=user)
        try:
            return await call
        except _REFUSALS:
            raise
        except boxlite.BoxliteError as error:
            raise self._boundary.translate(error) from None

    async def _follow(self, execution: Any, reading: Reading) -> Ended:
        streams = ((execution.stdout(), STDOUT), (execution.stderr(), STDERR))
        drains = asyncio.gather(*(self._drain(stream, number, reading) for stream, number in streams))
        try:
            await drains
            result = await self._boundary.cross(execution.wait())
        finally:
            drains.cancel()
            await asyncio.wait({drains})
            if not drains.cancelled():
                drains.exception()
        if reading.ended is not None:
            return reading.ended
        code = int(result.exit_code)
        return Ended(exit_code=code if code >= 0 else _SIGNALS - code)

    async def _drain(self, stream: Any, number: int, reading: Reading) -> None:
        async for piece in stream:
            await reading.take(number, piece if isinstance(piece, str) else bytes(piece).decode(errors="replace"))

    async def _look(self, words: str) -> None:
        """A process that was not started, or a machine that is gone: the library has one error for both."""
        info = await self._boundary.cross(self._box.info())
        if not info.state.running:
            raise SandboxLost(f"the machine is gone: {words}", driver=DRIVER, sandbox=self._name)
