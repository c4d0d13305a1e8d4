"""One of Modal's sandboxes: executed in, its clock set again, ended.

The vendor's own clock cannot be set again once a sandbox runs. So its main process is a clock of ours, which can be,
and whose end is the sandbox's.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import modal
from modal.container_process import ContainerProcess
from modal.exception import Error
from modal.io_streams import StreamReader

from dutyfree.core.errors import SandboxLost, Unsupported
from dutyfree.driver.agent_by_exec import OURS
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.exec_call import STDERR, STDOUT, CappedStreams, ExecCall, ExecEnd, Sink
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.modal.words import NO_PLACE, spoken

DRIVER = "modal"

_SET = "( echo $(($(date +%s) + $0)) >$p.new && mv $p.new $p ) 2>/dev/null"
_KEEP = f"""\
umask 077
for d in {OURS}; do p=$d/.dutyfree-until; {_SET} && break; done
while left=$(($(cat $p) - $(date +%s))) && [ $left -gt 0 ]; do sleep $left; done
"""
"""The file says when the sandbox ends, by its own time; it ends too if that is gone or says nothing of use."""

_EXTEND = f"for d in {OURS}; do p=$d/.dutyfree-until; [ ! -e $p ] || {{ {_SET}; exit; }}; done"

GREETING = "printf '%s\\0' \"$PWD\"; cat /proc/$$/environ"
"""Shows that commands run; and the image's own directory and environment."""

_PIECE = 4 << 20
"""Of input, in one call; the SDK holds 16 MiB at most."""


def keeper(ttl_s: float) -> list[str]:
    """The main process."""
    return ["sh", "-c", _KEEP, str(math.ceil(ttl_s))]


class ModalMachine:
    """A `hosted.vendor.Machine`."""

    def __init__(self, sandbox: modal.Sandbox, boundary: Boundary) -> None:
        self.id = sandbox.object_id
        self.defaults = ImageDefaults()
        self._sandbox = sandbox
        self._boundary = boundary

    async def greet(self) -> None:
        """Wait until commands run in it."""
        said = CappedStreams(1 << 20)
        await self.execute(ExecCall(argv=["sh", "-c", GREETING]), said)
        place, *items = said.stdout.kept().decode(errors="surrogateescape").split("\0")
        pairs = [item.partition("=") for item in items]
        env = {name: value for name, mark, value in pairs if mark and name}
        self.defaults = ImageDefaults(env=env, cwd=None if place in ("", "/", env.get("HOME")) else place)

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """An `Execute`: the streams of one process, byte for byte."""
        if wanted.user not in (None, "0", "root"):
            raise Unsupported(
                "another user is not offered: an exec call has none; use dispatch=agent", driver=DRIVER, sandbox=self.id
            )
        token = secrets.token_hex(12)
        words, before = spoken(wanted, token)
        call = self._sandbox.exec.aio(*words, env=dict(wanted.env), text=False)
        process = await self._boundary.cross(call)
        complaint = _Complaint(sink, len(token))
        feeder = asyncio.ensure_future(_feed(process, before, wanted))
        streams = (
            asyncio.ensure_future(self._drain(process.stdout, STDOUT, complaint)),
            asyncio.ensure_future(self._drain(process.stderr, STDERR, complaint)),
        )
        try:
            code = await self._boundary.cross(process.wait.aio())
            await asyncio.gather(*streams)
        finally:
            await _dropped(feeder, *streams)
        refused = code == NO_PLACE and complaint.said == token.encode()
        return ExecEnd(exit_code=code, refusal="chdir to cwd" if refused else None)

    async def extend(self, ttl_s: float) -> None:
        """Set our clock inside."""
        await self.execute(ExecCall(argv=["sh", "-c", _EXTEND, str(math.ceil(ttl_s))]), CappedStreams(0))

    async def end(self) -> None:
        """End it, and wait until it is gone."""
        with suppress(SandboxLost):
            await self._boundary.cross(self._sandbox.terminate.aio(wait=True))
        await self._boundary.cross(self._sandbox.detach.aio())  # type: ignore[no-untyped-call] # the SDK's own

    async def _drain(self, stream: StreamReader[bytes], number: int, sink: Sink) -> None:
        pieces = aiter(stream)
        while (piece := await self._boundary.cross(_next(pieces))) is not None:
            await sink.add(number, piece)


class _Complaint:
    """A sink, and the first that came by way of the errors."""

    def __init__(self, sink: Sink, length: int) -> None:
        self._sink = sink
        self._length = length
        self.said = b""

    async def add(self, stream: int, data: bytes) -> None:
        """Hand it on."""
        if stream == STDERR and len(self.said) <= self._length:
            self.said += data[: self._length + 1]
        await self._sink.add(stream, data)


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _feed(process: ContainerProcess[bytes], before: bytes, wanted: ExecCall) -> None:
    """Send a command's input, then its end. Input that nobody reads is no error."""
    with suppress(Error):
        process.stdin.write(before)
        async with aclosing(wanted.input(_PIECE)) as pieces:
            async for piece in pieces:
                process.stdin.write(piece)
                await process.stdin.drain.aio()
        process.stdin.write_eof()
        await process.stdin.drain.aio()


async def _dropped(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
