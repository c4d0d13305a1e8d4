"""Pass one command to a driver's exec call: the request, the sink of its output, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import NamedTuple, Protocol

STDOUT, STDERR = 1, 2


Input = bytes | bytearray | memoryview | AsyncGenerator[bytes, None]


class ExecCall(NamedTuple):
    """One exec call. Everything in it is text: words that are not UTF-8 have been quoted before."""

    argv: Sequence[str]
    env: Mapping[str, str] = MappingProxyType({})
    cwd: str | None = None
    user: str | None = None
    stdin: Input = b""

    @property
    def has_input(self) -> bool:
        """There is something to send, now or later."""
        return not isinstance(self.stdin, bytes | bytearray | memoryview) or len(self.stdin) > 0

    async def input(self, most: int) -> AsyncGenerator[memoryview, None]:
        """Yield the input in pieces of at most `most` bytes. Close it (`aclosing`) to close what it reads from."""
        if isinstance(self.stdin, bytes | bytearray | memoryview):
            for piece in _cut(self.stdin, most):
                yield piece
            return
        async with aclosing(self.stdin) as given:
            async for data in given:
                for piece in _cut(data, most):
                    yield piece


class ExecEnd(NamedTuple):
    """The end of an exec call, as far as the substrate tells it: a signal and an exit code above 128 look alike."""

    exit_code: int
    refusal: str | None = None
    """The substrate's words if the process was never started."""
    run_ns: int | None = None
    """The command's own time, where the substrate shows when it began."""


class Sink(Protocol):
    """Takes output as it comes; a slow one holds the reader up."""

    async def add(self, stream: int, data: bytes) -> None:
        """Bytes of `STDOUT` or `STDERR`."""
        ...


Execute = Callable[[ExecCall, Sink], Awaitable[ExecEnd]]
"""A driver's exec call. Cancelled, it lets go of the process; killing that is the sandbox's business. Raises
`SandboxLost` if there is nothing to execute in any more."""


class CappedOutput:
    """Collect one stream up to a limit; beyond it the head and the tail stay and the middle goes."""

    __slots__ = ("_head", "_limit", "_tail", "total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.total_bytes = 0
        self._limit = limit_bytes
        self._head = bytearray()
        self._tail: bytearray | None = None

    def add(self, data: bytes) -> None:
        """Keep what fits."""
        self.total_bytes += len(data)
        if self._tail is None:
            self._head += data
            if self.total_bytes > self._limit:
                kept = self._limit // 2
                self._tail = self._head[kept:]
                del self._head[kept:]
        else:
            self._tail += data
        if self._tail is not None and len(self._tail) > 2 * self._room + 65536:
            del self._tail[: len(self._tail) - self._room]

    @property
    def over(self) -> bool:
        """More came than the limit."""
        return self.total_bytes > self._limit

    @property
    def omitted_bytes(self) -> int:
        """Bytes that were dropped from the middle."""
        return max(0, self.total_bytes - self._limit)

    @property
    def gap(self) -> int | None:
        """Position in the kept bytes where others were left out; None if none were."""
        return len(self._head) if self.over else None

    def kept(self) -> bytes:
        """The bytes, or their head and tail."""
        if self._tail is None:
            return bytes(self._head)
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._room) :])

    @property
    def _room(self) -> int:
        return self._limit - self._limit // 2


class CappedStreams:
    """Keep both streams, up to a limit each."""

    def __init__(self, limit_bytes: int) -> None:
        self.stdout = CappedOutput(limit_bytes)
        self.stderr = CappedOutput(limit_bytes)
        self.over = asyncio.Event()
        """More came than the limit."""

    async def add(self, stream: int, data: bytes) -> None:
        """Keep what fits."""
        kept = self.stdout if stream == STDOUT else self.stderr
        kept.add(data)
        if kept.over:
            self.over.set()

    @property
    def omitted_bytes(self) -> int:
        """Bytes that were dropped from both streams."""
        return self.stdout.omitted_bytes + self.stderr.omitted_bytes


def _cut(data: bytes | bytearray | memoryview, most: int) -> Iterator[memoryview]:
    whole = memoryview(data)
    for start in range(0, len(whole), most):
        yield whole[start : start + most]
