"""Flow control: `Inbox` holds what the agent sends until a reader takes it; `Credit` and `Feed` send as it takes.

A slow reader returns no credit, so the writer inside the sandbox stops; nothing here ever holds more than its window.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from dutyfree.core.errors import Misuse, Violation
from dutyfree.guest.channel import Channel
from dutyfree.guest.link import Link
from dutyfree.guest.wire import (
    FLAG_END,
    INITIAL_CREDIT,
    MAX_CREDIT,
    MAX_PAYLOAD,
    STDIN,
    U64,
    WINDOW,
    Bytes,
    frame,
    head,
)

_JOIN_BELOW: Final = 64 << 10


class Inbox:
    """Chunks on their way to one reader; `tag` tells the streams of a channel apart."""

    def __init__(self, link: Link, channel: Channel, window: int) -> None:
        self._link = link
        self._channel = channel
        self._window = self._left = window
        self._taken = 0
        self._chunks: deque[tuple[int, bytearray]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def awaited(self) -> bool:
        """Somebody waits for the next chunk."""
        return self._waiter is not None

    def put(self, tag: int, payload: memoryview) -> None:
        """A chunk has come. Small ones are joined: a million bytes one by one must not be a million objects."""
        self._left -= len(payload)
        if self._left < 0:
            raise Violation("more data than it had credit for")
        if self._closed or not payload:
            return
        if self._chunks and self._chunks[-1][0] == tag and len(self._chunks[-1][1]) < _JOIN_BELOW:
            self._chunks[-1][1].extend(payload)
        else:
            self._chunks.append((tag, bytearray(payload)))
        self._wake()

    def grant(self, credit: int) -> None:
        """Take this much more than the window, whether or not anybody reads."""
        self._left += credit
        self._link.send(frame(self._channel.number, WINDOW, U64.pack(credit)))

    def close(self, *, discard: bool = False) -> None:
        """Nothing more will come; what is here can still be taken unless it is discarded."""
        self._closed = True
        if discard:
            self._chunks.clear()
        self._wake()

    async def take(self) -> tuple[int, bytes] | None:
        """The next chunk, or None after the last. Its credit goes back to the agent."""
        while not self._chunks:
            if self._closed:
                return None
            if self._waiter is not None:
                raise Misuse("the output is being read by somebody else already")
            self._waiter = self._link.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        tag, chunk = self._chunks.popleft()
        self._taken += len(chunk)
        if self._taken >= self._window // 2 and not self._closed:
            self._left += self._taken
            self._link.send(frame(self._channel.number, WINDOW, U64.pack(self._taken)))
            self._taken = 0
        return tag, bytes(chunk)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Feed:
    """Input that is all there: sent from the read callback as credits come, without anybody waiting."""

    def __init__(self, link: Link, channel: Channel, data: Bytes) -> None:
        self._link = link
        self._channel = channel
        self._rest = memoryview(data)
        self._left = 0
        self.grant(INITIAL_CREDIT)

    def grant(self, credit: int) -> None:
        """The agent takes more."""
        self._left = checked_credit(self._left + credit)
        while self._rest and self._left:
            piece = self._rest[: min(self._left, MAX_PAYLOAD)]
            self._left -= len(piece)
            self._rest = self._rest[len(piece) :]
            self._link.send(head(self._channel.number, STDIN, len(piece), 0 if self._rest else FLAG_END), piece)


class Credit:
    """Bytes that the agent still accepts on a channel, and the writer that waits for more."""

    def __init__(self, link: Link, channel: Channel, initial: int) -> None:
        self._link = link
        self._channel = channel
        self._left = initial
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._turn = asyncio.Lock()

    def grant(self, credit: int) -> None:
        """A WINDOW frame."""
        self._left = checked_credit(self._left + credit)
        self._wake()

    def close(self) -> None:
        """Nothing more can be sent."""
        self._closed = True
        self._wake()

    async def send(self, kind: int, data: Bytes, *, last_flag: int = 0) -> bool:
        """Send all of it as the agent takes it, the last frame with `last_flag`. False: the channel ended before."""
        rest = memoryview(data)
        async with self._turn:
            while not self._closed:
                if rest and not self._left:
                    await self._more()
                    continue
                piece = rest[: min(self._left, MAX_PAYLOAD)]
                rest = rest[len(piece) :]
                self._left -= len(piece)
                flag = 0 if rest else last_flag
                self._link.send(head(self._channel.number, kind, len(piece), flag), piece)
                await self._link.drained()
                if not rest:
                    return not self._closed
        return False

    async def _more(self) -> None:
        self._waiter = self._link.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def checked_credit(credit: int) -> int:
    """An honest agent never grants more than a few buffers."""
    if credit > MAX_CREDIT:
        raise Violation(f"{credit} bytes of credit")
    return credit
