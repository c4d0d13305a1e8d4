"""Outcome of an action: the value that every `run` returns.

A command that fails, is killed or runs out of time is an ordinary result, so all of that is data here. See
`errors` for what is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from signal import SIGKILL
from typing import Literal, Self

from dutyfree.core.errors import DutyfreeError, Misuse

Ending = Literal["exit", "signal", "timeout", "oom", "output-limit", "cancelled"]
"""The terminal states of an action, exactly one of which applies.

- ``exit``: it ended by itself; `exit_code` is its own.
- ``signal``: a signal that was not ours ended it; `signal` is which.
- ``timeout``: its deadline passed and its whole process tree was killed.
- ``oom``: the sandbox's memory limit killed it.
- ``output-limit``: it wrote more than it was allowed to, and the caller had asked for that to be fatal.
- ``cancelled``: the caller took it back.
"""


StreamName = Literal["stdout", "stderr"]

TIMEOUT_CODE = 124
"""The exit code of coreutils' `timeout` at a deadline."""
TAIL_CHARACTERS = 2000
"""Bytes of each stream that the message of `CommandFailed` shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One command's result: exact bytes, how it ended, and what it cost."""

    ending: Ending
    exit_code: int | None = None
    """The command's own exit code; None unless `ending` is ``exit``. Program not found: 127; not executable: 126."""
    signal: int | None = None
    """The signal that ended it, if one did (also for our own kills)."""
    stdout: bytes = b""
    stderr: bytes = b""
    """Empty when the caller merged the streams or asked for a terminal."""
    truncated: bool = False
    """True if the middle of a stream was dropped: head and tail are kept, `omitted_bytes` were not."""
    omitted_bytes: int = 0
    """Bytes that were dropped from both streams together."""
    stderr_omitted_bytes: int = 0
    """Those of them that were written to stderr."""
    stdout_gap: int | None = None
    """Where in `stdout` the dropped bytes were: `stdout[:stdout_gap]` is the head, the rest the tail. None: no gap."""
    stderr_gap: int | None = None
    """The same for `stderr`."""
    run_ns: int = 0
    """The command's own time, taken next to it: from just before its start to its end being known."""
    total_ns: int = 0
    """The caller's time: from the call to the result being in hand. `total_ns - run_ns` is the dispatch."""
    cpu_ns: int = 0
    """CPU time of the command and the children it waited for; 0 where the substrate cannot tell."""
    max_rss_bytes: int = 0
    """Largest resident set among them; 0 where the substrate cannot tell."""
    oom_kills: int = 0
    """Processes of the sandbox that its memory limit killed while the action ran, also those that the command survived:
    an exit code of 0 says nothing of them. Actions that run at once each count them all, as the kernel does not say
    whose they were; at most 65,535. 0 where the substrate cannot tell."""

    @property
    def ok(self) -> bool:
        """The command ended by itself with exit code 0."""
        return self.ending == "exit" and self.exit_code == 0

    @property
    def stdout_omitted_bytes(self) -> int:
        """Bytes of stdout that were dropped."""
        return self.omitted_bytes - self.stderr_omitted_bytes

    @property
    def dispatch_ns(self) -> int:
        """Time that the substrate added to the command's own time."""
        return max(0, self.total_ns - self.run_ns)

    @property
    def returncode(self) -> int:
        """The exit code that a shell would report: the command's own, 128 + the signal, 124 at a deadline, else 137."""
        if self.ending == "timeout":
            return TIMEOUT_CODE
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or SIGKILL)

    def text(self, stream: StreamName = "stdout") -> str:
        """A stream for people: decoded as UTF-8, undecodable bytes shown as replacement characters."""
        if stream not in ("stdout", "stderr"):
            raise Misuse(f"must be 'stdout' or 'stderr', not {stream!r}", field="stream")
        return (self.stdout if stream == "stdout" else self.stderr).decode(errors="replace")

    def check(self) -> Self:
        """Return the outcome itself if it is `ok`; else raise `CommandFailed`, with the end of what the command said."""
        if self.ok:
            return self
        raise CommandFailed(self)


class CommandFailed(DutyfreeError):
    """A command did not end with exit code 0, and the caller had asked for that by `Outcome.check`."""

    def __init__(self, outcome: Outcome) -> None:
        how = (
            f"exit code {outcome.exit_code}" if outcome.ending == "exit" else f"{outcome.ending} ({outcome.returncode})"
        )
        said = [
            f"; {stream} ends:\n{tail}"
            for stream in ("stdout", "stderr")
            if (tail := outcome.text(stream)[-TAIL_CHARACTERS:].rstrip())
        ]
        super().__init__(f"the command ended with {how}" + "".join(said))
        self.outcome = outcome
