"""Blocking twins of `Process`, `Shell` and `Forward`. See `core.contract` for what they mean."""

from __future__ import annotations

from typing import NoReturn, Self

from dutyfree.blocking.bridge import Bridge
from dutyfree.core import contract
from dutyfree.core.contract import DEFAULT_OUTPUT_LIMIT_BYTES, TerminalSize
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome, StreamName
from dutyfree.core.spec import Content


class Mirror:
    """A blocking object that runs its asynchronous twin on the loop of one connection."""

    _bridge: Bridge

    def __reduce__(self) -> NoReturn:
        raise Misuse(f"a {type(self).__name__} cannot be sent to another process: connect there")


class Process(Mirror):
    """A command that is running. Iterate it for output as it comes. A block kills it at its end."""

    def __init__(self, bridge: Bridge, process: contract.Process) -> None:
        self._bridge = bridge
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._bridge.end(self._process.kill())

    def __iter__(self) -> Self:
        """Chunks of exact bytes until both streams end."""
        return self

    def __next__(self) -> tuple[StreamName, bytes]:
        """The next chunk."""
        chunk = self._bridge.call(_next(self._process))
        if chunk is None:
            raise StopIteration
        return chunk

    def write(self, data: Content) -> None:
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


class Shell(Mirror):
    """A persistent shell; ends with its block."""

    def __init__(self, bridge: Bridge, shell: contract.Shell) -> None:
        self._bridge = bridge
        self._shell = shell

    def run(
        self,
        script: str,
        *,
        timeout_s: float | None = None,
        stdin: Content = b"",
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Outcome:
        """Run a script in the shell."""
        return self._bridge.call(
            self._shell.run(script, timeout_s=timeout_s, stdin=stdin, output_limit_bytes=output_limit_bytes)
        )

    def start(self, script: str, *, timeout_s: float | None = None, stdin: Content = b"") -> Process:
        """Run a script in the shell, and hand back its `Process` to watch."""
        return Process(self._bridge, self._bridge.call(self._shell.start(script, timeout_s=timeout_s, stdin=stdin)))

    def interrupt(self) -> None:
        """Interrupt the running script as Ctrl-C does, from another thread."""
        self._bridge.call(self._shell.interrupt())

    @property
    def alive(self) -> bool:
        """The shell can take another `run`."""
        return self._shell.alive

    def close(self) -> None:
        """End the shell and what it left running."""
        self._bridge.end(self._shell.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Snapshot(Mirror):
    """A saved state of a sandbox."""

    def __init__(self, bridge: Bridge, snapshot: contract.Snapshot) -> None:
        self._bridge = bridge
        self._snapshot = snapshot

    @property
    def key(self) -> str:
        """The name that the snapshot is kept under."""
        return self._snapshot.key

    @property
    def image(self) -> str:
        """The name of an image that starts from this state."""
        return self._snapshot.image

    def remove(self) -> None:
        """Give it up."""
        self._bridge.end(self._snapshot.remove())


class Forward(Mirror):
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
        self._bridge.end(self._forward.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


async def _next(process: contract.Process) -> tuple[StreamName, bytes] | None:
    try:
        return await process.__anext__()
    except StopAsyncIteration:
        return None
