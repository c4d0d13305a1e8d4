"""What passes between the `api` sandbox and a driver's exec call: one request, where its output goes, how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from dutyfree.substrates.host.capture import Capture

STDOUT, STDERR = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One exec call. Everything in it is text: what is not UTF-8 has been quoted before."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    stdin: bytes | bytearray | memoryview | AsyncGenerator[bytes, None] = b""

    @property
    def has_input(self) -> bool:
        """There is something to send, now or later."""
        return not isinstance(self.stdin, bytes | bytearray | memoryview) or len(self.stdin) > 0

    async def input(self, most: int) -> AsyncGenerator[memoryview, None]:
        """What is to be sent, in pieces of at most `most` bytes. Close it (`aclosing`): that closes what it reads from."""
        if isinstance(self.stdin, bytes | bytearray | memoryview):
            for piece in _cut(self.stdin, most):
                yield piece
            return
        async with aclosing(self.stdin) as given:
            async for data in given:
                for piece in _cut(data, most):
                    yield piece


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How it ended, as far as the substrate tells: a signal and an exit code above 128 look alike."""

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


Execute = Callable[[Execution, Sink], Awaitable[Ended]]
"""A driver's exec call. Cancelled, it lets go of the process; killing that is the sandbox's business. Raises
`SandboxLost` if there is nothing to execute in any more."""


class Kept:
    """Both streams up to a limit each."""

    def __init__(self, limit_bytes: int) -> None:
        self.stdout = Capture(limit_bytes)
        self.stderr = Capture(limit_bytes)
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
        """Of both."""
        return self.stdout.omitted_bytes + self.stderr.omitted_bytes


def _cut(data: bytes | bytearray | memoryview, most: int) -> Iterator[memoryview]:
    whole = memoryview(data)
    for start in range(0, len(whole), most):
        yield whole[start : start + most]
