"""`Channel`: one conversation's host side; `Call`, the kind that waits for a terminal frame; `Opening`, for another first.

Channels react to frames, synchronously, inside the loop's read callback; they never wait. What a frame must not be
is a `Violation`.
"""

from __future__ import annotations

import asyncio
from struct import Struct

from dutyfree.core.errors import Violation
from dutyfree.guest.reply import Failure, check_empty, parse_error, parse_number
from dutyfree.guest.wire import END, ERROR


class Channel:
    """Entry in the link's table of channels."""

    __slots__ = ("abandoned", "ended", "number", "overdue", "timer")

    def __init__(self) -> None:
        self.number = 0
        self.ended = False
        """Its terminal frame has come."""
        self.abandoned = False
        """Nobody waits any more; it stays in the table until it has ended."""
        self.overdue = False
        """The host's own deadline has passed."""
        self.timer: asyncio.TimerHandle | None = None

    def frame(self, kind: int, _flags: int, _payload: memoryview) -> None:
        """A frame on this channel. The payload is valid during the call only."""
        raise unexpected(kind)

    def accept(self, _number: int) -> Channel:
        """The agent opens a channel on behalf of this one."""
        raise Violation("ACCEPT on a channel that does not listen")

    def abandon(self) -> None:
        """Drop what was collected, and what still comes."""
        self.abandoned = True

    def cancelling(self) -> None:
        """CANCEL is about to be sent: nothing may keep the end from coming."""

    def closed(self) -> None:
        """The channel is out of the table: it has `ended`, or the link is lost."""


class Call(Channel):
    """A request whose caller waits for its end."""

    __slots__ = ("_gone", "failure", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.over: asyncio.Future[None] = loop.create_future()
        self.failure: Failure | None = None
        self._gone: asyncio.Future[None] | None = None

    def frame(self, kind: int, _flags: int, payload: memoryview) -> None:
        """END or ERROR; subclasses know more."""
        if kind == ERROR:
            self.failure = parse_error(payload)
        elif kind == END:
            self.end(payload)
        else:
            raise unexpected(kind)

    def end(self, payload: memoryview) -> None:
        """END has come; by itself it says nothing."""
        check_empty("END", payload)

    def closed(self) -> None:
        """Wake the caller."""
        if not self.over.done():
            self.over.set_result(None)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def gone(self) -> None:
        """Wait for the end of an open call whose own caller has been cancelled (and `over` with it)."""
        if self._gone is None:
            self._gone = self.over.get_loop().create_future()
        await asyncio.shield(self._gone)


class Opening(Call):
    """A call with a beginning of its own: OPENED or STARTED comes first, the end later."""

    __slots__ = ("opened",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.opened: asyncio.Future[None] = loop.create_future()

    def closed(self) -> None:
        """Also for who waits for the beginning."""
        if not self.opened.done():
            self.opened.set_result(None)
        super().closed()


class NumberCall(Call):
    """A request that END answers with one integer."""

    __slots__ = ("shape", "value")

    def __init__(self, loop: asyncio.AbstractEventLoop, shape: Struct) -> None:
        super().__init__(loop)
        self.shape = shape
        self.value = -1

    def end(self, payload: memoryview) -> None:
        """The integer."""
        self.value = parse_number("END", payload, self.shape)


def unexpected(kind: int) -> Violation:
    """A frame type that this channel cannot have."""
    return Violation(f"a frame of type {kind:#x} where it makes no sense")
