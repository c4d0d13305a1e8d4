"""`Link`: the conversation with one agent. Owns the stream, the table of channels and what happens when it breaks.

Everything the agent says is hostile: a frame that the protocol does not allow here and now ends the link, names the
violation, and fails every pending call. It starts nothing by itself and has no tasks: channels react to frames.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from dutyfree.core import fault
from dutyfree.core.errors import DutyfreeError, Misuse, SandboxLost, Unavailable, Violation
from dutyfree.core.home import INHERITED, OTHER_LOOP, check_loop, own
from dutyfree.core.log import LOG
from dutyfree.guest.channel import Call, Channel, Opening
from dutyfree.guest.failure import error_for
from dutyfree.guest.frame import Parser
from dutyfree.guest.reply import check_hello, parse_error, parse_number
from dutyfree.guest.transport import Descriptors, Transport
from dutyfree.guest.wire import (
    ACCEPT,
    AGENT_CHANNEL,
    CANCEL,
    CONFIG,
    END,
    ERROR,
    EXIT,
    HELLO,
    PING,
    U32,
    Bytes,
    config,
    frame,
    head,
)

Cause = Callable[[], Awaitable[str | None]]
"""Asks the driver why the sandbox died; None if it does not know."""

CAUSE_TIMEOUT_S: Final = 1.0
CANCEL_GRACES: Final = 10
"""How many graces the agent has to end a request that was taken back: killing a large tree on a busy machine."""


class Link:
    """One agent's stream. Made by `attach`; every sandbox has exactly one."""

    def __init__(self, transport: Transport, *, sandbox: str) -> None:
        self.sandbox = sandbox
        self.loop = asyncio.get_running_loop()
        self.features = 0
        """What the agent's HELLO says it can do."""
        self.grace_s = 1.0
        """How far the host's own deadline lies behind the agent's, and how long a kill may then take."""
        self.cause: Cause | None = None
        self.broken: Callable[[], None] | None = None
        """Called once when the agent can no longer be trusted or does not obey: the owner must end the sandbox."""
        self.lost: str | None = None
        """Why the link is over; None while it is not."""
        self.channels: dict[int, Channel] = {}
        """Conversations that have not ended, by number."""
        self.send = transport.send
        self.drained = transport.drained
        self._transport = transport
        self._parser = Parser(self._frame)
        self._last = 0
        self._greeted: asyncio.Future[bool] = self.loop.create_future()
        self._violated = False
        self._inherited = False
        own(self)

    @classmethod
    def attach(cls, source: socket.socket | tuple[int, int] | Transport, *, sandbox: str) -> Link:
        """Take ownership of a connected stream: a socket, (read fd, write fd), or a `Transport`. Inside a loop."""
        transport = Descriptors(source) if isinstance(source, socket.socket | tuple) else source
        link = cls(transport, sandbox=sandbox)
        transport.start(link._parser, link._break)
        return link

    async def hello(self, timeout_s: float) -> None:
        """Wait for the agent's greeting. `Unavailable` if none comes in time, `SandboxLost` if it is not an agent's."""
        fault.at("dutyfree.agent.hello", self.sandbox)
        late = self.loop.call_later(timeout_s, self._greet, False)
        try:
            greeted = await self._greeted
        finally:
            late.cancel()
        if self.lost is not None:
            raise await self.explain()
        if not greeted:
            raise Unavailable(f"the agent has not greeted within {timeout_s:g} s", sandbox=self.sandbox)

    def configure(self, *, cwd: bytes = b"", user: bytes = b"", env: Sequence[bytes] = (), idle_ns: int = 0) -> None:
        """Set the defaults of every later request."""
        self.send(frame(0, CONFIG, config(idle_ns, cwd, user, env)))

    async def ping(self, payload: bytes = b"") -> None:
        """There and back."""
        call = Echo(self.loop, payload)
        self.open(call, PING, payload)
        await self.finished(call)

    def open(self, channel: Channel, kind: int, payload: bytes, tail: Bytes = b"", flags: int = 0) -> None:
        """Start a conversation: give the channel a number and send its request (payload, then tail)."""
        if self.lost is not None:
            channel.closed()
            return
        if asyncio.get_running_loop() is not self.loop:
            raise Misuse(OTHER_LOOP, sandbox=self.sandbox)
        number = self._last % (AGENT_CHANNEL - 1) + 1
        while number in self.channels:
            number = number % (AGENT_CHANNEL - 1) + 1
        self._last = channel.number = number
        self.channels[number] = channel
        if tail:
            self.send(head(number, kind, len(payload) + len(tail), flags) + payload, tail)
        else:
            self.send(head(number, kind, len(payload), flags) + payload)

    def has(self, channel: Channel) -> bool:
        """The channel is open."""
        return self.channels.get(channel.number) is channel

    async def finished(self, call: Call) -> None:
        """Wait for a call's terminal frame. Cancelled: the agent is told, and the channel kept until it answers."""
        try:
            await call.over
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        if not call.ended:
            raise await self.explain()

    async def opened(self, call: Opening) -> None:
        """Wait for a call's beginning; raises what kept it from beginning. Cancelled: as `finished`."""
        try:
            await asyncio.shield(call.opened)
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        if call.failure is not None:
            raise error_for(call.failure, sandbox=self.sandbox)
        if self.lost is not None and not call.ended:
            raise await self.explain()

    def watch(self, channel: Channel, timeout_s: float | None) -> None:
        """Hold a deadline, if there is one, that the agent should have held itself."""
        if timeout_s is not None and self.lost is None:
            channel.timer = self.loop.call_later(timeout_s + self.grace_s, self._overdue, channel)

    def abandon(self, channel: Channel) -> None:
        """Take a request back: CANCEL, drop what still comes, and insist on an answer. Harmless if it has ended."""
        if self.has(channel) and not channel.abandoned:
            channel.abandon()
            self.cancel(channel)

    def cancel(self, channel: Channel, patience_s: float | None = None) -> None:
        """Send CANCEL; an agent that has not ended the channel `patience_s` later is given up."""
        if not self.has(channel):
            return
        channel.cancelling()
        self.send(frame(channel.number, CANCEL))
        if channel.timer is not None:
            channel.timer.cancel()
        patience_s = CANCEL_GRACES * self.grace_s if patience_s is None else patience_s
        channel.timer = self.loop.call_later(patience_s, self.violated, "a kill was not obeyed in time")

    def violated(self, reason: str) -> None:
        """Give the agent up."""
        self._transport.close()
        self._break(reason, True)

    def close(self, reason: str = "it was destroyed") -> None:
        """End the stream, and with it the agent and every process of the sandbox. Calling it twice is fine."""
        self._transport.close()
        self._break(reason, False)

    def disown(self) -> None:
        """In a forked child: every call is refused, the agent hears nothing."""
        self._inherited = True
        self._transport.disown()
        self._break(INHERITED, False)

    def check_home(self) -> None:
        """Raise `Misuse` in a forked child, and on another event loop."""
        if self._inherited:
            raise Misuse(INHERITED, sandbox=self.sandbox)
        check_loop(self.loop)

    async def explain(self) -> DutyfreeError:
        """The error for a caller whose link is lost, with what the driver knows of the cause."""
        if self._inherited:
            return Misuse(INHERITED, sandbox=self.sandbox)
        reason = self.lost or "the link is closed"
        if self._violated:
            return SandboxLost(f"the agent broke the protocol: {reason}", sandbox=self.sandbox)
        if self.cause is not None:
            try:
                async with asyncio.timeout(CAUSE_TIMEOUT_S):
                    reason = await self.cause() or reason
            except TimeoutError:
                reason += "; the driver does not know why"
        return SandboxLost(f"the sandbox is gone: {reason}", sandbox=self.sandbox)

    def _overdue(self, channel: Channel) -> None:
        channel.overdue = True
        self.cancel(channel, self.grace_s)

    def _frame(self, number: int, kind: int, flags: int, payload: memoryview) -> None:
        channel = self.channels.get(number)
        if channel is None:
            self._unasked(number, kind, payload)
            return
        if flags > 1:
            raise Violation(f"a frame of type {kind:#x} has flags {flags:#x}")
        channel.frame(kind, flags, payload)
        if kind in (EXIT, END, ERROR):
            if channel.timer is not None:
                channel.timer.cancel()
            del self.channels[number]
            channel.ended = True
            channel.closed()
            if not self.channels:
                self._parser.shrink()

    def _unasked(self, number: int, kind: int, payload: memoryview) -> None:
        if self.lost is not None:
            return
        if number == 0 and kind == HELLO and not self._greeted.done():
            self.features = check_hello(payload)
            self._greet(True)
        elif number == 0 and kind == ERROR:
            failure = parse_error(payload)
            raise Violation(f"it gave up: {failure.what}: {failure.detail}")
        elif number & AGENT_CHANNEL and kind == ACCEPT:
            listener = self.channels.get(parse_number("ACCEPT", payload, U32))
            if listener is None:
                raise Violation("ACCEPT for a listener that is not open")
            channel = listener.accept(number)
            channel.number = number
            self.channels[number] = channel
        else:
            raise Violation(f"a frame of type {kind:#x} on channel {number:#x}, which is not open")

    def _greet(self, greeted: bool) -> None:
        if not self._greeted.done():
            self._greeted.set_result(greeted)

    def _break(self, reason: str, violation: bool) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        self._violated = violation
        if violation:
            LOG.info("%s: the agent broke the protocol and is given up: %s", self.sandbox, reason)
        else:
            LOG.debug("%s: its stream is over: %s", self.sandbox, reason)
        self._greet(False)
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            if channel.timer is not None:
                channel.timer.cancel()
            channel.closed()
        broken, self.broken = self.broken, None
        # What knew us is let go of: a sandbox and its buffers are freed with the last reference, not by a collector.
        self._parser.close()
        if violation and broken is not None:
            broken()


class Echo(Call):
    """A PING on its way."""

    __slots__ = ("_payload",)

    def __init__(self, loop: asyncio.AbstractEventLoop, payload: bytes) -> None:
        super().__init__(loop)
        self._payload = payload

    def end(self, payload: memoryview) -> None:
        """The same bytes must come back."""
        if payload != self._payload:
            raise Violation("PING came back changed")
