"""`Bridge`: one event loop in a thread of its own, and how other threads wait for what runs there.

A bare lock carries the result: a `concurrent.futures.Future` costs a condition variable and two more wake-ups of the
interpreter lock per call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from dutyfree.core.errors import Misuse

T = TypeVar("T")


class Bridge:
    """Owns the loop and its thread; `close` ends both. The thread does not keep the program alive."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="dutyfree-loop", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; its result, or what it raises. Interrupted: it is cancelled, to its end."""
        if threading.current_thread() is self._thread:
            work.close()
            raise Misuse("called from the loop's own thread")
        job = Job(self._loop, work)
        try:
            self._submit(job)
            job.done.acquire()
        except BaseException:
            # A signal handler raised in this thread (KeyboardInterrupt): take the action back before going on.
            self._submit(job, cancel=True)
            job.done.acquire()
            raise
        return job.result()

    def close(self) -> None:
        """Stop the loop and wait for its thread. Calling it twice is fine."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()

    def _submit(self, job: Job[Any], *, cancel: bool = False) -> None:
        """Under the lock: what is submitted before the loop is told to stop is still seen by it."""
        with self._lock:
            if self._closed:
                job.drop()
            else:
                self._loop.call_soon_threadsafe(job.cancel if cancel else job.start)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._wind_up())
            self._loop.close()

    async def _wind_up(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


class Job(Generic[T]):
    """A coroutine on its way through the loop."""

    __slots__ = ("_error", "_loop", "_task", "_value", "_work", "done")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def start(self) -> None:
        """In the loop: begin."""
        self._task = self._loop.create_task(self._run())

    def cancel(self) -> None:
        """In the loop: take it back, also if it never began."""
        if self._task is None:
            self.drop()
        else:
            self._task.cancel()

    def drop(self) -> None:
        """Give up what never began."""
        if self._task is None:
            self._work.close()
            if self.done.locked():
                self.done.release()

    def result(self) -> T:
        """After `done`: what came of it."""
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
        # From inside the task, not its done callback: that would be one more turn of the loop.
        self.done.release()
