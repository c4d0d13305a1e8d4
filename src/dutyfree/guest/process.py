"""`AgentProcess`: a command its caller watches: output as it comes, input while it runs, signals, a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from dutyfree.core.contract import DEFAULT_OUTPUT_LIMIT_BYTES, Command, TerminalSize
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome, StreamName
from dutyfree.core.pending import finish
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
    size_numbers,
    user_bytes,
    whole,
)
from dutyfree.guest.channel import Opening, unexpected
from dutyfree.guest.command import outcome_of
from dutyfree.guest.failure import error_for
from dutyfree.guest.flow import Credit, Feed, Inbox
from dutyfree.guest.gather import Kept
from dutyfree.guest.link import Link
from dutyfree.guest.reply import Exit, Failure, parse_error, parse_exit, parse_number
from dutyfree.guest.wire import (
    BACKGROUND,
    ERROR,
    EXEC,
    EXIT,
    FLAG_END,
    INITIAL_CREDIT,
    MERGE,
    RESIZE,
    SIGNAL,
    STARTED,
    STDERR,
    STDIN,
    STDIN_OPEN,
    STDOUT,
    STREAM,
    TERMINAL,
    TO_THE_END,
    U32,
    U64,
    WANT_STARTED,
    WINDOW,
    execution,
    frame,
    packed,
    resize,
)

OUTPUT_WINDOW: Final = 1 << 20
DRAIN_CREDIT: Final = 4 << 20
"""More than the pipes of a command can hold."""
_NAMES: Final[dict[int, StreamName]] = {STDOUT: "stdout", STDERR: "stderr"}


class Stream(Opening):
    """The channel of a command that is watched."""

    __slots__ = ("drained", "exit", "feed", "input", "link", "output", "pid")

    def __init__(self, link: Link) -> None:
        super().__init__(link.loop)
        self.link = link
        self.exit: Exit | None = None
        self.pid = 0
        self.drained = False
        self.feed: Feed | None = None
        self.output = Inbox(link, self, OUTPUT_WINDOW)
        self.input = Credit(link, self, INITIAL_CREDIT)

    def frame(self, kind: int, _flags: int, payload: memoryview) -> None:
        """Output, credits and the end."""
        if kind in (STDOUT, STDERR):
            self.output.put(kind, payload)
        elif kind == WINDOW:
            (self.feed or self.input).grant(parse_number("WINDOW", payload, U64))
        elif kind == STARTED and not self.opened.done():
            self.pid = parse_number("STARTED", payload, U32)
            self.opened.set_result(None)
        elif kind == EXIT:
            self.exit = parse_exit(payload)
        elif kind == ERROR:
            self.failure = parse_error(payload)
        else:
            raise unexpected(kind)

    def abandon(self) -> None:
        """Nobody will read the rest."""
        super().abandon()
        self.feed = None
        self.output.close(discard=True)

    def cancelling(self) -> None:
        """Grant credit for the output that is left in the command's pipes: it comes before the command's end."""
        if not self.drained:
            self.drained = True
            self.output.grant(DRAIN_CREDIT)

    def closed(self) -> None:
        """Wake readers and writers too."""
        self.output.close()
        self.input.close()
        super().closed()


class AgentProcess:
    """`Process` over a link."""

    def __init__(self, channel: Stream, start_ns: int, *, writable: bool, terminal: bool) -> None:
        self._channel = channel
        self._link = channel.link
        self._start_ns = start_ns
        self._writable = writable
        self._terminal = terminal
        self._outcome: Outcome | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await finish(self.kill())

    def __aiter__(self) -> Self:
        """Chunks of exact bytes until both streams end."""
        return self

    async def __anext__(self) -> tuple[StreamName, bytes]:
        """The next chunk. Cancelled, it has taken none: ask again."""
        self._link.check_home()
        chunk = await self._channel.output.take()
        if chunk is None:
            await self._check()
            raise StopAsyncIteration
        return _NAMES[chunk[0]], chunk[1]

    async def write(self, data: Content) -> None:
        """Send to stdin; BrokenPipeError if the command is over."""
        raw = input_bytes(data, "data")
        self._link.check_home()
        if not self._writable:
            raise Misuse("its input is complete; start it with stdin=None to write later", sandbox=self._link.sandbox)
        if not await self._channel.input.send(STDIN, raw):
            await self._check()
            raise BrokenPipeError("the command has ended")

    async def close_stdin(self) -> None:
        """End of input. Calling it twice is fine."""
        if self._writable:
            self._writable = False
            await self._channel.input.send(STDIN, b"", last_flag=FLAG_END)

    async def signal(self, number: int) -> None:
        """To the process group."""
        self._say(SIGNAL, U32.pack(whole("number", number, 1, 64)))
        await self._check()

    async def resize(self, size: TerminalSize) -> None:
        """The terminal's new size."""
        numbers = size_numbers(size)
        if not self._terminal:
            raise Misuse("it has no terminal", sandbox=self._link.sandbox)
        self._say(RESIZE, resize(*numbers))
        await self._check()

    async def kill(self) -> None:
        """Kill the whole tree and wait until it is gone."""
        self._link.check_home()
        self._link.cancel(self._channel)
        await self._link.finished(self._channel)

    async def wait(self) -> Outcome:
        """The outcome, with what nobody has read of the output."""
        self._link.check_home()
        if self._outcome is None:
            kept = {STDOUT: Kept(DEFAULT_OUTPUT_LIMIT_BYTES), STDERR: Kept(DEFAULT_OUTPUT_LIMIT_BYTES)}
            if not self._channel.output.awaited:
                while (chunk := await self._channel.output.take()) is not None:
                    kept[chunk[0]].add(chunk[1])
            await self._link.finished(self._channel)
            self._outcome = self._result(kept[STDOUT], kept[STDERR])
        return self._outcome

    def _result(self, stdout: Kept, stderr: Kept) -> Outcome:
        channel = self._channel
        if channel.exit is None:
            raise error_for(channel.failure or Failure(0, "exit", ""), sandbox=self._link.sandbox)
        omitted = stdout.omitted + stderr.omitted
        said = channel.exit._replace(truncated=omitted > 0, omitted_bytes=omitted, stderr_omitted_bytes=stderr.omitted)
        return outcome_of(
            said, stdout.bytes(), stderr.bytes(), now_ns() - self._start_ns, channel.overdue, (stdout.gap, stderr.gap)
        )

    def _say(self, kind: int, payload: bytes) -> None:
        self._link.check_home()
        if not self._channel.over.done():
            self._link.send(frame(self._channel.number, kind, payload))

    async def _check(self) -> None:
        if self._channel.over.done() and not self._channel.ended:
            raise await self._link.explain()

    @property
    def pid(self) -> int:
        """As seen inside the sandbox; 0 if it never started."""
        return self._channel.pid


async def start(
    link: Link,
    command: Command,
    *,
    timeout_s: float | None,
    cwd: Inside | None,
    env: Mapping[str, str] | None,
    stdin: Content | None,
    user: User | None,
    merge_stderr: bool,
    terminal: TerminalSize | None,
    background: bool,
) -> AgentProcess:
    """`Sandbox.start`."""
    start_ns = now_ns()
    options, argv = command_items(command)
    options |= STREAM | WANT_STARTED
    rows = columns = 0
    if terminal is not None:
        rows, columns = size_numbers(terminal)
        options |= TERMINAL
    if merge_stderr:
        options |= MERGE
    if background:
        options |= BACKGROUND
    first = b"" if stdin is None else input_bytes(stdin)
    if stdin is None or len(first) > FIRST_INPUT:
        options |= STDIN_OPEN
    place = optional_path("cwd", cwd), user_bytes(user)
    variables = env_items(env)
    limit = TO_THE_END
    payload = execution(options, rows, columns, deadline_ns(timeout_s), limit, OUTPUT_WINDOW, *place, argv, variables)
    check_request(payload, argv, variables)
    channel = Stream(link)
    link.open(channel, EXEC, payload + packed(first if len(first) <= FIRST_INPUT else b""))
    if len(first) > FIRST_INPUT:
        channel.feed = Feed(link, channel, first)
    link.watch(channel, timeout_s)
    await link.opened(channel)
    return AgentProcess(channel, start_ns, writable=stdin is None, terminal=terminal is not None)
