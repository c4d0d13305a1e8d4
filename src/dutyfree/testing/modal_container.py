"""What stands for the vendor's worker in `dutyfree.testing.modal`: containers, and the commands executed in them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2

from dutyfree.core.contract import Process, Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Limits, Spec
from dutyfree.substrates.registry import connect

WINDOW = 1 << 20
"""What is kept of a stream for a reader that is behind; then the command waits."""

Call = Any
T = TypeVar("T")


class Pipe:
    """One stream of a command, told by offsets."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._data) < WINDOW)
            self._data += data
            self._changed.notify_all()

    async def close(self) -> None:
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        """From an offset that was not read before, to the end."""
        while True:
            async with self._changed:
                if offset < self._start:
                    raise GRPCError(Status.OUT_OF_RANGE, f"{offset} is no longer kept")
                while not self._closed and self._start + len(self._data) <= offset:
                    await self._changed.wait()
                piece = bytes(self._data[offset - self._start :])
                self._data.clear()
                self._start = offset = offset + len(piece)
                self._changed.notify_all()
            if not piece:
                return
            yield piece


class Execution:
    """One command of a container."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.pipes = {"stdout": Pipe(), "stderr": Pipe()}
        self.written = 0
        self.pump = asyncio.ensure_future(self._pump())

    async def _pump(self) -> Outcome:
        try:
            async for stream, data in self.process:
                await self.pipes[stream].put(data)
            return await self.process.wait()
        finally:
            for pipe in self.pipes.values():
                await pipe.close()

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        if offset > self.written:
            raise GRPCError(Status.INVALID_ARGUMENT, f"there are {self.written} bytes so far, not {offset}")
        fresh = data[self.written - offset :]
        self.written += len(fresh)
        try:
            if fresh:
                await self.process.write(fresh)
            if eof:
                await self.process.close_stdin()
        except BrokenPipeError:
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed") from None


class Container:
    """A sandbox, as the vendor has them."""

    def __init__(
        self, definition: api_pb2.Sandbox, tags: dict[str, str], app_id: str, ended: Callable[[Container], None]
    ) -> None:
        self.id = f"sb-{secrets.token_hex(16)}"
        self.task_id = f"ta-{secrets.token_hex(8)}V"
        self.created_at = time.time()
        self.definition = definition
        self.tags = tags
        self.app_id = app_id
        self.executions: dict[str, Execution] = {}
        self.over = asyncio.Event()
        self._ended = ended
        self._status = api_pb2.GenericResult.GENERIC_STATUS_UNSPECIFIED
        self._substrate: Substrate
        self._box: Sandbox
        self._main: asyncio.Task[None]

    async def start(self, image: str) -> None:
        wanted, resources = self.definition, self.definition.resources
        limits = Limits(
            cpus=resources.milli_cpu_max / 1000 or None, memory_bytes=(resources.memory_mb_max << 20) or None
        )
        blocked = wanted.network_access.network_access_type == api_pb2.NetworkAccess.BLOCKED
        self._substrate = await connect("native", stock="0")
        self._box = await self._substrate.create(
            Spec(image=image, limits=limits, network="none" if blocked else "host", cwd="/root", storage="memory")
        )
        self._main = asyncio.ensure_future(self._live(list(wanted.entrypoint_args), wanted.timeout_secs))

    async def execute(self, key: str, wanted: router_pb2.TaskExecStartRequest) -> None:
        if key in self.executions:
            return
        env = {name: value for source in wanted.secret_sources for name, value in source.env.contents.items()}
        process = await self._box.start(
            list(wanted.command_args), cwd=wanted.workdir or None, env=env, stdin=None, background=True
        )
        self.executions[key] = Execution(process)

    async def result(self, timeout_s: float) -> api_pb2.GenericResult:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.over.wait()
        return api_pb2.GenericResult(status=self._status)

    async def end(self, status: Any) -> None:
        """Everything in it dies; calling it twice is fine."""
        if self.over.is_set():
            return
        self._status = status
        self.over.set()
        self._ended(self)
        await self._substrate.close()
        for execution in self.executions.values():
            with suppress(DutyfreeError):
                await execution.pump
        if asyncio.current_task() is not self._main:
            self._main.cancel()
            await asyncio.wait({self._main})

    async def while_alive(self, work: Awaitable[T]) -> T:
        """The work's result, or the vendor's words for a sandbox that has ended."""
        task, over = asyncio.ensure_future(work), asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({task, over}, return_when="FIRST_COMPLETED")
            if not task.done() or isinstance(task.exception(), DutyfreeError):
                raise self.gone()
            return task.result()
        finally:
            for one in (task, over):
                one.cancel()
            await asyncio.wait({task, over})

    def gone(self) -> GRPCError:
        return GRPCError(Status.NOT_FOUND, f"Task {self.task_id} not found: it has already shut down")

    async def _live(self, entrypoint: Sequence[str], timeout_s: int) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._box.run(entrypoint)
            status = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
        except TimeoutError:
            status = api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT
        except DutyfreeError:
            status = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
        await self.end(status)


class Router:
    """The service on a worker by which commands are executed."""

    def __init__(self, containers: Sequence[Container], jwt: str) -> None:
        self._containers = containers
        self._jwt = jwt

    async def TaskExecStart(self, stream: Call) -> None:  # noqa: N802 - the protocol's own names
        wanted, container = await self._received(stream)
        await container.while_alive(container.execute(wanted.exec_id, wanted))
        await stream.send_message(router_pb2.TaskExecStartResponse())

    async def TaskExecStdinWrite(self, stream: Call) -> None:  # noqa: N802
        wanted, container = await self._received(stream)
        execution = container.executions[wanted.exec_id]
        await container.while_alive(execution.write(wanted.offset, wanted.data, wanted.eof))
        await stream.send_message(router_pb2.TaskExecStdinWriteResponse())

    async def TaskExecStdioRead(self, stream: Call) -> None:  # noqa: N802
        wanted, container = await self._received(stream)
        is_stdout = wanted.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        pipe = container.executions[wanted.exec_id].pipes["stdout" if is_stdout else "stderr"]
        async for piece in pipe.read(wanted.offset):
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=piece))
        if container.over.is_set():
            raise container.gone()

    async def TaskExecWait(self, stream: Call) -> None:  # noqa: N802
        wanted, container = await self._received(stream)
        outcome = await container.while_alive(asyncio.shield(container.executions[wanted.exec_id].pump))
        told = {"code": outcome.exit_code} if outcome.exit_code is not None else {"signal": outcome.signal}
        await stream.send_message(router_pb2.TaskExecWaitResponse(**told))

    async def _received(self, stream: Call) -> tuple[Any, Container]:
        if stream.metadata.get("authorization") != f"Bearer {self._jwt}":
            raise GRPCError(Status.UNAUTHENTICATED, "the token is not valid")
        message = await stream.recv_message()
        found = [one for one in self._containers if one.task_id == message.task_id]
        if not found or found[0].over.is_set():
            raise GRPCError(Status.NOT_FOUND, f"Task {message.task_id} not found")
        return message, found[0]
