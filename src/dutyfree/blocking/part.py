"""What a sandbox hands out, mirrored: `Process`, `Shell`, `Forward`. See `core.contract` for what they mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Self, TypeVar

from dutyfree.blocking.bridge import Bridge
from dutyfree.core import contract
from dutyfree.core.contract import DEFAULT_OUTPUT_LIMIT_BYTES, StreamName, TerminalSize
from dutyfree.core.outcome import Outcome

T = TypeVar("T")


class Process:
    """A command that is running. Iterate it for output as it comes."""

    def __init__(self, bridge: Bridge, process: contract.Process) -> None:
        self._bridge = bridge
        self._process = process

    def __iter__(self) -> Iterator[tuple[StreamName, bytes]]:
        """Chunks of exact bytes until both streams end."""
        chunks = aiter(self._process)
        while (chunk := self._bridge.call(_next(chunks))) is not None:
            yield chunk

    def write(self, data: bytes) -> None:
        """Send to stdin; a slow reader makes this wait."""
        self._bridge.call(self._process.write(data))

    def close_stdin(self) -> None:
        """End of input."""
        self._bridge.call(self._process.close_stdin())

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        self._bridge.call(self._process.signal(number))

    def resize(self, size: TerminalSize) -> None:
        """Tell the terminal its new size."""
        self._bridge.call(self._process.resize(size))

    def kill(self) -> None:
        """Kill the whole process tree."""
        self._bridge.call(self._process.kill())

    def wait(self) -> Outcome:
        """The outcome, with output that was not iterated."""
        return self._bridge.call(self._process.wait())


class Shell:
    """A persistent shell; ends with its block."""

    def __init__(self, bridge: Bridge, shell: contract.Shell) -> None:
        self._bridge = bridge
        self._shell = shell

    def run(
        self,
        script: str,
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Outcome:
        """Run a script in the shell."""
        return self._bridge.call(
            self._shell.run(script, timeout_s=timeout_s, stdin=stdin, output_limit_bytes=output_limit_bytes)
        )

    def interrupt(self) -> None:
        """What Ctrl-C does, from another thread than the one that runs."""
        self._bridge.call(self._shell.interrupt())

    @property
    def alive(self) -> bool:
        """The shell can take another `run`."""
        return self._shell.alive

    def close(self) -> None:
        """End the shell and what it left running."""
        self._bridge.call(self._shell.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Snapshot:
    """A saved state of a sandbox."""

    def __init__(self, bridge: Bridge, snapshot: contract.Snapshot) -> None:
        self._bridge = bridge
        self._snapshot = snapshot

    @property
    def key(self) -> str:
        """What it is kept under."""
        return self._snapshot.key

    @property
    def image(self) -> str:
        """The name of an image that starts from this state."""
        return self._snapshot.image

    def remove(self) -> None:
        """Give it up."""
        self._bridge.call(self._snapshot.remove())


class Forward:
    """A relayed port; closed with its block."""

    def __init__(self, bridge: Bridge, forward: contract.Forward) -> None:
        self._bridge = bridge
        self._forward = forward

    @property
    def port(self) -> int:
        """The port that listens."""
        return self._forward.port

    def close(self) -> None:
        """Stop listening and drop the connections."""
        self._bridge.call(self._forward.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


async def _next(chunks: AsyncIterator[T]) -> T | None:
    return await anext(chunks, None)
