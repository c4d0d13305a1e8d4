"""The part of Modal's wire that is served where a sandbox runs: commands, their streams by offsets, and how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as wire

from dutyfree.core.contract import StreamName
from dutyfree.core.errors import SandboxLost
from support.protocol.place import Job, Place, Places

WINDOW = 1 << 20
"""What is kept of a stream for a reader that is behind; then the command waits."""

Call = Any


class Pipe:
    """One stream of a command, told by offsets."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, data: bytes) -> None:
        """Waits for a reader that is far behind."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or len(self._data) < WINDOW)
            self._data += data
            self._changed.notify_all()

    async def close(self) -> None:
        """Nothing more will come."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def read(self, offset: int) -> AsyncGenerator[bytes, None]:
        """From an offset that was not read before, to the end."""
        if offset != self._start:
            raise GRPCError(Status.OUT_OF_RANGE, f"{offset} is not kept, {self._start} is")
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._closed or self._data)
                piece = bytes(self._data)
                self._data.clear()
                self._start += len(piece)
                self._changed.notify_all()
            if not piece:
                return
            yield piece


class Execution:
    """A command, with its streams apart."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.pipes: dict[StreamName, Pipe] = {"stdout": Pipe(), "stderr": Pipe()}
        self._written = 0
        self._pump = asyncio.create_task(self._part())

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        """Input; what came before is passed over."""
        if offset > self._written:
            raise GRPCError(Status.INVALID_ARGUMENT, f"there are {self._written} bytes so far, not {offset}")
        fresh = data[self._written - offset :]
        self._written += len(fresh)
        try:
            if fresh:
                await self.job.feed(fresh)
            if eof:
                await self.job.close_input()
        except BrokenPipeError:
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed") from None

    async def _part(self) -> None:
        async with aclosing(self.job.pieces()) as pieces:
            async for stream, data in pieces:
                await self.pipes[stream].put(data)
        for pipe in self.pipes.values():
            await pipe.close()


class Router:
    """The service."""

    def __init__(self, places: Places, jwt: str) -> None:
        self._places = places
        self._jwt = jwt
        self._executions: dict[str, Execution] = {}

    async def TaskExecStart(self, stream: Call) -> None:  # noqa: N802 - the protocol's own names
        wanted = await self._received(stream)
        if wanted.exec_id not in self._executions:
            env = {name: value for source in wanted.secret_sources for name, value in source.env.contents.items()}
            with _lost():
                job = await self._place(wanted).start(
                    list(wanted.command_args), env=env, cwd=wanted.workdir or None, stdin=True
                )
            self._executions[wanted.exec_id] = Execution(job)
        await stream.send_message(wire.TaskExecStartResponse())

    async def TaskExecStdinWrite(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        with _lost():
            await self._executions[wanted.exec_id].write(wanted.offset, wanted.data, wanted.eof)
        await stream.send_message(wire.TaskExecStdinWriteResponse())

    async def TaskExecStdioRead(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        is_stdout = wanted.file_descriptor == wire.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        pipe = self._executions[wanted.exec_id].pipes["stdout" if is_stdout else "stderr"]
        async with aclosing(pipe.read(wanted.offset)) as pieces:
            async for piece in pieces:
                await stream.send_message(wire.TaskExecStdioReadResponse(data=piece))
        self._place(wanted)

    async def TaskExecWait(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        with _lost():
            outcome = await self._executions[wanted.exec_id].job.wait()
        exited, code, number = outcome.ending == "exit", outcome.exit_code or 0, outcome.signal or 0
        await stream.send_message(
            wire.TaskExecWaitResponse(code=code) if exited else wire.TaskExecWaitResponse(signal=number)
        )

    async def _received(self, stream: Call) -> Any:
        if stream.metadata.get("authorization") != f"Bearer {self._jwt}":
            raise GRPCError(Status.UNAUTHENTICATED, "the token is not valid")
        return await stream.recv_message()

    def _place(self, wanted: Any) -> Place:
        place = self._places.found.get(wanted.task_id.removeprefix("ta-").removesuffix("V"))
        if place is None:
            raise _gone()
        return place


class _lost:  # noqa: N801 - used as a word
    """A place that ended meanwhile, in the vendor's words."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SandboxLost):
            raise _gone() from None


def _gone() -> GRPCError:
    return GRPCError(Status.NOT_FOUND, "Task not found: it has already shut down")
