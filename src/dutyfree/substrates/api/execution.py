"""What passes between the `api` sandbox and a driver's exec call: one request, where its output goes, how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
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
