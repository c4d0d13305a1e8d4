"""One machine of the library, and its exec call: events in order, input by a pipe, an exit code at the end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

import microsandbox
from microsandbox import ExecEventType, ExecHandle, Sandbox, Stdin

from dutyfree.core.errors import SandboxLost
from dutyfree.core.timeline import now_ns
from dutyfree.substrates.api.execution import STDERR, STDOUT, Ended, Execution, Kept, Sink
from dutyfree.substrates.boot import Defaults
from dutyfree.substrates.hosted.boundary import Boundary

_BY_SIGNAL = 137
"""The library tells a signal as -1, and not which."""

_NOT_STARTED = 126
_PIECE = 1 << 16


class MicrosandboxMachine:
    """Made by `Microsandbox.start`."""

    def __init__(self, box: Sandbox, name: str, boundary: Boundary, remove: Callable[[str], Awaitable[None]]) -> None:
        self.defaults = Defaults()
        self._box = box
        self._name = name
        self._boundary = boundary
        self._remove = remove

    async def execute(self, wanted: Execution, sink: Sink) -> Ended:
        """One exec call."""
        try:
            handle = await self._boundary.cross(self._begin(wanted))
        except _Refused as refused:
            return await self._refusal(wanted, refused.words, refused.number)
        feeder = asyncio.ensure_future(_feed(handle, wanted))
        try:
            return await self._follow(handle, wanted, sink)
        finally:
            feeder.cancel()
            await asyncio.wait({feeder})
            if not feeder.cancelled():
                feeder.exception()

    async def extend(self, ttl_s: float) -> None:
        """It lives as long as we do."""

    async def end(self) -> None:
        """Kill it."""
        await self._remove(self._name)

    async def _begin(self, wanted: Execution) -> ExecHandle:
        try:
            return await self._box.exec_stream(
                wanted.argv[0],
                list(wanted.argv[1:]),
                cwd=wanted.cwd,
                user=wanted.user,
                env=dict(wanted.env),
                stdin=Stdin.pipe() if wanted.has_input else Stdin.null(),
            )
        except microsandbox.ExecFailedError as error:
            raise _Refused(str(error), None) from error

    async def _follow(self, handle: ExecHandle, wanted: Execution, sink: Sink) -> Ended:
        began_ns = now_ns()
        while True:
            event = await self._boundary.cross(handle.recv())
            if event is None:
                raise SandboxLost("the machine is gone: a command ended without its exit code", driver="microsandbox")
            kind = event.event_type
            if kind is ExecEventType.STARTED:
                began_ns = now_ns()
            elif kind is ExecEventType.STDOUT:
                await sink.add(STDOUT, bytes(event.data or b""))
            elif kind is ExecEventType.STDERR:
                await sink.add(STDERR, bytes(event.data or b""))
            elif kind is ExecEventType.EXITED:
                code = _BY_SIGNAL if event.code is None or event.code < 0 else event.code
                return Ended(exit_code=code, run_ns=now_ns() - began_ns)
            elif kind is ExecEventType.FAILED:
                return await self._refusal(wanted, bytes(event.data or b"").decode(errors="replace"), event.code)

    async def _refusal(self, wanted: Execution, words: str, number: int | None) -> Ended:
        """The library has the same words for a program and a directory that are not there."""
        if wanted.cwd is not None and number in (None, errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            looked = await self.execute(Execution(argv=["test", "-d", wanted.cwd], user="0"), Kept(0))
            if looked.exit_code == 1:
                return Ended(exit_code=_NOT_STARTED, refusal=f"no such directory: {wanted.cwd}")
        return Ended(exit_code=_NOT_STARTED, refusal=words)


class _Refused(Exception):
    """The process was never started."""

    def __init__(self, words: str, number: int | None) -> None:
        super().__init__(words)
        self.words = words
        self.number = number


async def _feed(handle: ExecHandle, wanted: Execution) -> None:
    pipe = handle.take_stdin()
    if pipe is not None:
        with suppress(microsandbox.MicrosandboxError):  # nobody reads it
            async with aclosing(wanted.input(_PIECE)) as pieces:
                async for piece in pieces:
                    await pipe.write(bytes(piece))
            await pipe.close()
