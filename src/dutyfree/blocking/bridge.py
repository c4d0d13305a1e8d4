"""`Bridge`: one event loop for callers that have none, and how they wait for what runs there.

The loop is run by one thread at a time, who has the turn: a caller for the length of its call, or, while nobody
calls, the bridge's own thread, which keeps forwards, deadlines and streams going. A caller that finds the turn taken
hands its work over and waits. See `turn` for why.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from dutyfree.blocking.turn import HeldSignals, TurnLoop, Watch
from dutyfree.core.errors import Misuse
from dutyfree.core.home import INHERITED, own, running_loop
from dutyfree.core.pending import finish

T = TypeVar("T")


class Bridge:
    """Owns the loop and its thread; `close` ends both. The thread does not keep the program alive."""

    def __init__(self) -> None:
        self._loop = TurnLoop()
        self._watch = Watch(self._loop.selector.fileno())
        self._turn = threading.Lock()
        """Held by whoever runs the loop."""
        self._attended: Job[Any] | None = None
        """What the caller who has the turn waits for."""
        self._guard = threading.Lock()
        """What is submitted before the loop is told to end is still seen by it."""
        self._closed = False
        self._jobs: set[Job[Any]] = set()
        """What callers wait for."""
        self._due_s: float | None = None
        """When the loop's next timer runs out, as our own thread knows it."""
        self._inherited = False
        own(self)
        self._thread = threading.Thread(target=self._serve, name="dutyfree-loop", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; its result, or what it raises. Interrupted: it is cancelled, to its end."""
        if self._inherited:
            work.close()
            raise Misuse(INHERITED)
        running = running_loop()
        if running is self._loop:
            work.close()
            raise Misuse("called from the loop's own thread")
        job = Job(self._loop, work, self._finished)
        self._jobs.add(job)
        try:
            # A thread that runs a loop of its own (a notebook) cannot run another one meanwhile.
            if running is not None or not self._attend(job):
                self._submit(job.start, job)
            job.wait()
        except BaseException:
            # A signal handler raised in this thread (KeyboardInterrupt): take the action back before going on.
            self._submit(job.cancel, job)
            job.wait()
            raise
        finally:
            self._jobs.discard(job)
        return job.result()

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what ends something; nothing if all has ended already, or if it is a forked child that asks."""
        if self._closed or self._inherited:
            work.close()
        else:
            self.call(work)

    async def reach(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop for a caller that runs another one. Cancelled: it is cancelled, to its end."""
        if self._inherited:
            work.close()
            raise Misuse(INHERITED)
        job = Reached(self._loop, work, asyncio.get_running_loop())
        self._jobs.add(job)
        self._submit(job.start, job)
        try:
            await job.ended.wait()
        except asyncio.CancelledError:
            self._submit(job.cancel, job)
            await finish(job.end())
            raise
        finally:
            self._jobs.discard(job)
        return job.result()

    def close(self) -> None:
        """Cancel what runs, end the loop and wait for its thread. Calling it twice is fine."""
        if self._inherited:
            return
        with self._guard:
            if not self._closed:
                self._closed = True
                self._watch.kick()
                self._loop.call_soon_threadsafe(self._cancel_all)
        self._thread.join()

    def disown(self) -> None:
        """In a forked child: there is no thread, and the loop's epoll is the owner's. No call gets as far as either."""
        self._inherited = True
        self._loop.disown()

    # -- turns

    def _take_turn(self) -> bool:
        if not self._turn.acquire(blocking=False):
            return False
        if self._closed:
            self._turn.release()
            return False
        return True

    def _attend(self, job: Job[Any]) -> bool:
        """Run the loop until the job is done, or somebody else has the turn after a signal. False: it was not begun.

        From taking the turn to giving it back no signal handler may raise, or nobody would have it ever again.
        """
        signals = HeldSignals(lambda: self._interrupt(job))
        begun = False
        while not job.over:
            try:
                signals.hold()
                if not self._take_turn():
                    break
                if not begun:
                    job.start()
                    begun = True
                try:
                    self._run(job, signals)
                finally:
                    self._give_back()
            finally:
                signals.release()
        return begun

    def _run(self, job: Job[Any], signals: HeldSignals) -> None:
        self._watch.off()
        self._attended = job
        self._loop.selector.ending = False
        if not signals.came:
            self._loop.run_forever()
        if self._loop.busy:
            self._run_what_is_left()

    def _run_what_is_left(self) -> None:
        """With the turn: until the loop would have to wait. It may also be stopped before, by what was for another run."""
        self._loop.selector.ending = True
        self._loop.run_forever()
        while self._loop.busy:
            self._loop.run_forever()

    def _give_back(self) -> None:
        due_s = self._loop.due_s
        late = due_s is not None and (self._due_s is None or due_s < self._due_s)
        self._due_s = due_s
        self._attended = None
        self._watch.on()
        if late:
            self._watch.kick()  # our thread sleeps too long
        self._turn.release()

    def _finished(self, job: Job[Any]) -> None:
        """In the loop: whoever runs it for this job has what it wants."""
        if self._attended is job:
            self._loop.stop()

    def _interrupt(self, job: Job[Any]) -> None:
        """In a signal handler: end the run of the loop that is for this job, if there is one."""
        if self._attended is job:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _submit(self, step: Callable[[], None], job: Job[Any]) -> None:
        with self._guard:
            if self._closed:
                job.drop()
            else:
                self._loop.call_soon_threadsafe(step)

    # -- the bridge's own thread

    def _serve(self) -> None:
        self._watch.on()
        while not self._closed:
            due_s = self._due_s
            self._watch.wait(None if due_s is None else max(0.0, due_s - self._loop.time()))
            self._turn.acquire()
            self._watch.off()
            self._run_what_is_left()
            self._give_back()
        with self._guard, self._turn:  # whoever closes has said all it wants to say
            self._run_what_is_left()
            self._loop.selector.ending = False
            self._loop.run_until_complete(self._wind_up())
            for job in list(self._jobs):
                job.drop()
            self._watch.close()
            self._loop.close()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    async def _wind_up(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


class Job(Generic[T]):
    """A coroutine on its way through the loop."""

    __slots__ = ("_error", "_finished", "_loop", "_task", "_value", "_waiter", "_work", "over")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], finished: Callable[[Job[Any]], None]
    ) -> None:
        self._loop = loop
        self._work = work
        self._finished = finished
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._waiter: threading.Lock | None = None
        self.over = False

    def start(self) -> None:
        """In the loop: begin."""
        self._task = self._loop.create_task(self._run())

    def cancel(self) -> None:
        """In the loop: take it back, also if it never began."""
        if self._task is None:
            self.drop()
        else:
            self._task.add_done_callback(lambda _: self.drop())
            self._task.cancel()

    def drop(self) -> None:
        """Give up what never began: a task that is cancelled before its first step never takes it. Else nothing."""
        if not self.over:
            self._work.close()
            self._error = asyncio.CancelledError()
            self._end()

    def wait(self) -> None:
        """Until it is over. Only the caller waits, and it waits only for others: who runs the loop itself knows."""
        if self.over:
            return
        # A bare lock: a `concurrent.futures.Future` costs a condition variable and two more wake-ups of the
        # interpreter lock per call.
        waiter = threading.Lock()
        waiter.acquire()
        self._waiter = waiter
        if not self.over:
            waiter.acquire()

    def result(self) -> T:
        """Once it is over: what came of it."""
        if isinstance(self._error, asyncio.CancelledError) or self._task is None:
            raise Misuse("the connection is closed")
        if self._error is not None:
            raise self._error
        return self._value

    async def _run(self) -> None:
        try:
            self._value = await self._work
        except BaseException as error:  # noqa: BLE001 - nothing is handled here: it is raised in the other thread
            self._error = error
        # From inside the task, not its done callback: that would be one more round of the loop.
        self._end()
        self._finished(self)

    def _end(self) -> None:
        self.over = True
        if self._waiter is not None and self._waiter.locked():
            self._waiter.release()


class Reached(Job[T]):
    """A job whose caller waits in an event loop of its own."""

    __slots__ = ("_theirs", "ended")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], theirs: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(loop, work, lambda _job: None)
        self._theirs = theirs
        self.ended = asyncio.Event()

    async def end(self) -> None:
        """Until it is over."""
        await self.ended.wait()

    def _end(self) -> None:
        super()._end()
        with suppress(RuntimeError):  # their loop is closed: nobody waits any more
            self._theirs.call_soon_threadsafe(self.ended.set)
