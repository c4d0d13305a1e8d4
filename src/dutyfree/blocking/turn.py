"""Run an event loop from whichever thread needs it: a selector that reports an idle loop, and deferred signals.

A caller that finds nobody running the loop runs it itself, since waking a thread to do it, and being woken in turn,
costs more than the rest of a call. Between calls the loop's own thread takes over as soon as anything happens in it.
"""

from __future__ import annotations

# What `signal` wraps: its conversions to enumerations would take longer than everything else here.
import _signal  # type: ignore[import-not-found]
import asyncio
import os
import select
import selectors
import signal
import threading
from collections.abc import Callable, Sized
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


class TurnSelector(selectors.EpollSelector):
    """Ends the turn instead of waiting, when told to: the loop then has done all it can do now."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = False
        """The turn is over as soon as the loop would have to wait."""
        self.stop: Callable[[], None]
        """Makes the loop return, set by its owner."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the selector it is, but see `ending`."""
        if not self.ending or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        events = super().select(0)
        if not events:
            self.stop()
        return events


class TurnLoop(asyncio.SelectorEventLoop):
    """A loop that can be asked, while nobody runs it, what it has left to do."""

    _ready: Sized
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self.selector = TurnSelector()
        super().__init__(self.selector)
        self.selector.stop = self.stop
        self._inherited = False

    def disown(self) -> None:
        """Give up a forked child's copy of the epoll, which is one with the owner's."""
        self._inherited = True
        self.selector.close()

    def close(self) -> None:
        """As the loop it is. A child's copy holds nothing of its own."""
        if not self._inherited:
            super().close()

    @property
    def busy(self) -> bool:
        """Callbacks wait to be called."""
        return len(self._ready) > 0

    @property
    def due_s(self) -> float | None:
        """When its next timer runs out, by its own clock; None: it has none."""
        return self._scheduled[0].when() if self._scheduled else None


class Watch:
    """Waits for something to happen in a loop that nobody runs."""

    def __init__(self, loop_fd: int) -> None:
        self._loop_fd = loop_fd
        self._kick_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.epoll()
        self._poll.register(loop_fd, 0)
        self._poll.register(self._kick_fd, select.EPOLLIN)

    def on(self) -> None:
        """`wait` returns, once, when the loop has something to do."""
        self._poll.modify(self._loop_fd, select.EPOLLIN | select.EPOLLONESHOT)

    def off(self) -> None:
        """Somebody runs the loop: `wait` is not concerned."""
        self._poll.modify(self._loop_fd, 0)

    def kick(self) -> None:
        """Make `wait` return."""
        os.eventfd_write(self._kick_fd, 1)

    def wait(self, timeout_s: float | None) -> None:
        """Until something happens, `kick`, or the time is over."""
        if any(fd == self._kick_fd for fd, _ in self._poll.poll(timeout_s)):
            os.eventfd_read(self._kick_fd)

    def close(self) -> None:
        """Give up the descriptors. Not the loop's."""
        self._poll.close()
        os.close(self._kick_fd)


class HeldSignals:
    """Signal handlers of the main thread, kept from running in the middle of the loop's work, where they could raise.

    Python runs handlers in the main thread only: in any other this does nothing. Of every call's way, hence no search
    through all signals, and no generator.
    """

    __slots__ = ("_handlers", "_wake", "came")

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when one came: what holds them should end."""
        self._wake = wake
        self._handlers: dict[int, Handler] = {}
        self.came: list[tuple[int, FrameType | None]] = []
        """Signals that wait for their handlers."""

    def hold(self) -> None:
        """Hold back signal handlers from now on."""
        if threading.get_ident() == _MAIN:
            for number in _HANDLED:
                handler = _signal.getsignal(number)
                if callable(handler):  # and not the number that stands for "default" or "ignore"
                    self._handlers[number] = handler
                    _signal.signal(number, self._note)

    def release(self) -> None:
        """Put the handlers back and run those whose signals came; what the last of them raises is raised."""
        if not self._handlers:
            return
        raised: BaseException | None = None
        held = list(self._handlers)
        while held or self.came:
            try:
                while held:
                    _signal.signal(held[-1], self._handlers[held[-1]])
                    held.pop()
                while self.came:
                    number, frame = self.came.pop(0)
                    self._handlers[number](number, frame)
            except BaseException as error:  # noqa: BLE001 - one of theirs, which must not keep the others from their turn
                raised = error
        self._handlers = {}
        if raised is not None:
            raise raised

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came.append((number, frame))
        self._wake()


_MAIN = threading.main_thread().ident
_NAMES = ("HUP", "INT", "QUIT", "ALRM", "TERM", "USR1", "USR2", "CHLD", "VTALRM", "PROF", "WINCH")
_HANDLED = tuple(int(getattr(signal, f"SIG{name}")) for name in _NAMES)
"""What programs handle in Python."""
