"""`Run`: a command from request to `Outcome`, with its output kept up to the limit. The hot path of everything.

One frame out, one future, one wake-up. Content beyond what the agent takes at first is sent from the read callback as
credits come. Streams of output and input for a caller that watches are in `process`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dutyfree.core.contract import Command
from dutyfree.core.errors import Violation
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Content, Inside, User
from dutyfree.core.timeline import now_ns
from dutyfree.guest.argument import (
    FIRST_INPUT,
    check_request,
    command_items,
    deadline_ns,
    env_items,
    input_bytes,
    optional_path,
    output_limit,
    user_bytes,
)
from dutyfree.guest.channel import Call, unexpected
from dutyfree.guest.failure import error_for
from dutyfree.guest.flow import Feed
from dutyfree.guest.gather import Gathered, bytes_of, gather, size_of
from dutyfree.guest.link import Link
from dutyfree.guest.reply import Exit, Failure, parse_error, parse_exit, parse_number
from dutyfree.guest.wire import (
    BACKGROUND,
    ERROR,
    EXEC,
    EXIT,
    MERGE,
    OUTPUT_FATAL,
    STDERR,
    STDIN_OPEN,
    STDOUT,
    U64,
    WINDOW,
    Bytes,
    execution,
    packed,
)

WINDOW_SLACK: Final = 64 << 10
"""Granted over the limit, so that a command at its limit is never without credit."""


NOTE_SLACK: Final = 512
"""The agent's own line about a program that cannot be executed may come on top of any limit; it is cut here."""
MAX_SIGNAL: Final = 64

Gaps = tuple[int | None, int | None]
NO_GAPS: Final[Gaps] = (None, None)


class Run(Call):
    """The channel of a command whose output is collected."""

    __slots__ = ("_feed", "_link", "exit", "gaps", "limit", "stderr", "stdout")

    def __init__(self, link: Link, limit: int) -> None:
        super().__init__(link.loop)
        self.limit = limit
        self.stdout: Gathered = b""
        self.stderr: Gathered = b""
        self.exit: Exit | None = None
        self.gaps = NO_GAPS
        """Where bytes were left out of each stream."""
        self._link = link
        self._feed: Feed | None = None

    def frame(self, kind: int, flags: int, payload: memoryview) -> None:
        """Output, credits and the end."""
        if kind == EXIT:
            self.exit = parse_exit(payload)
            return
        if flags:
            self._note_gap(kind)
        if kind == STDOUT:
            self.stdout = self._kept(self.stdout, payload)
        elif kind == STDERR:
            self.stderr = self._kept(self.stderr, payload)
        elif kind == WINDOW:
            credit = parse_number("WINDOW", payload, U64)
            if self._feed is not None:
                self._feed.grant(credit)
        elif kind == ERROR:
            self.failure = parse_error(payload)
        else:
            raise unexpected(kind)

    def abandon(self) -> None:
        """Free what was collected."""
        super().abandon()
        self.stdout = self.stderr = b""
        self._feed = None

    def request(self, kind: int, payload: bytes, timeout_s: float | None, later: Bytes = b"") -> None:
        """Send the request, and then, as the agent takes it, the input that is not in it (this needs STDIN_OPEN)."""
        self._link.open(self, kind, payload)
        if later:
            self._feed = Feed(self._link, self, later)
        self._link.watch(self, timeout_s)

    def outcome(self, start_ns: int) -> Outcome:
        """The result, for a call that began at `start_ns`."""
        if self.exit is None:
            raise error_for(self.failure or Failure(0, "exit", ""), sandbox=self._link.sandbox)
        stdout, stderr = bytes_of(self.stdout), bytes_of(self.stderr)
        if len(stdout) > self.limit or len(stderr) > self.limit:
            stdout, stderr = stdout[: self.limit], stderr[: self.limit]
        return outcome_of(self.exit, stdout, stderr, now_ns() - start_ns, self.overdue, self.gaps)

    def _note_gap(self, kind: int) -> None:
        out, err = self.gaps
        if kind == STDOUT:
            self.gaps = size_of(self.stdout), err
        elif kind == STDERR:
            self.gaps = out, size_of(self.stderr)

    def _kept(self, have: Gathered, payload: memoryview) -> Gathered:
        if self.abandoned:
            return b""
        if size_of(have) + len(payload) > self.limit + NOTE_SLACK:
            raise Violation("more output than the limit that was set")
        return gather(have, payload)


def outcome_of(
    said: Exit, stdout: bytes, stderr: bytes, total_ns: int, overdue: bool = False, gaps: Gaps = NO_GAPS
) -> Outcome:
    """EXIT and the output as the caller's value."""
    ending, code = said.ending, said.code
    if overdue and ending == "cancelled":
        ending = "timeout"
    if said.truncated:  # without a tail the gap is at the end
        out, err = gaps
        if said.omitted_bytes > said.stderr_omitted_bytes:
            out = len(stdout) if out is None else min(out, len(stdout))
        if said.stderr_omitted_bytes:
            err = len(stderr) if err is None else min(err, len(stderr))
        gaps = out, err
    return Outcome(
        ending=ending,
        exit_code=code if ending == "exit" else None,
        signal=code if ending != "exit" and 0 < code <= MAX_SIGNAL else None,
        stdout=stdout,
        stderr=stderr,
        truncated=said.truncated,
        omitted_bytes=said.omitted_bytes,
        stderr_omitted_bytes=said.stderr_omitted_bytes,
        stdout_gap=gaps[0],
        stderr_gap=gaps[1],
        run_ns=said.run_ns,
        total_ns=total_ns,
        cpu_ns=said.cpu_ns,
        max_rss_bytes=said.max_rss_bytes,
        oom_kills=said.oom_kills,
    )


async def run(
    link: Link,
    command: Command,
    *,
    timeout_s: float | None,
    cwd: Inside | None,
    env: Mapping[str, str] | None,
    stdin: Content,
    user: User | None,
    merge_stderr: bool,
    output_limit_bytes: int,
    kill_on_output_limit: bool,
    background: bool,
) -> Outcome:
    """`Sandbox.run`."""
    start_ns = now_ns()
    options, argv = command_items(command)
    limit = output_limit(output_limit_bytes)
    if merge_stderr:
        options |= MERGE
    if kill_on_output_limit:
        options |= OUTPUT_FATAL
    if background:
        options |= BACKGROUND
    now, later = input_bytes(stdin), b""
    if len(now) > FIRST_INPUT:
        options |= STDIN_OPEN
        now, later = b"", now
    variables = env_items(env)
    payload = execution(
        options,
        0,
        0,
        deadline_ns(timeout_s),
        limit,
        2 * limit + WINDOW_SLACK,
        optional_path("cwd", cwd),
        user_bytes(user),
        argv,
        variables,
    )
    check_request(payload, argv, variables)
    call = Run(link, limit)
    call.request(EXEC, payload + packed(now), timeout_s, later)
    await link.finished(call)
    return call.outcome(start_ns)
