"""`Refiller`: keeps the stock at its targets and at what demand suggests, off everybody's way.

It makes at most `refill` sandboxes at once, none while somebody waits for room, and few while the machine's
processors are taken by rollouts, unless a kind of sandbox has run out that somebody wants. What nobody has wanted for
a while goes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from dutyfree.core import fault
from dutyfree.core.errors import DutyfreeError
from dutyfree.core.pending import finish
from dutyfree.core.timeline import now_ns
from dutyfree.warm.shelf import Idle, Shelf
from dutyfree.warm.stock import Stock

LOOK_S = 2.0
"""How often targets and demand are looked at when nothing happens."""
BUSY_PAUSE_S = 0.02
"""How soon a busy machine is looked at again."""
BUSY_PACE_NS = 100_000_000
"""A machine that stays busy gets one sandbox made this often all the same: it may never be idle."""
SPARED_NS = 10_000_000_000
"""An idle sandbox that is one too many is kept this long all the same: demand comes back."""
LONGEST_REST_S = 60.0
LEAST_FREE_SHARE = 0.1
"""Share of the machine's memory: with less, nothing is made for the stock."""

_STARVING = 0.25


class Refiller:
    """One task, from `start` to `close`."""

    def __init__(self, stock: Stock, renew: Callable[[], Awaitable[None]]) -> None:
        self._stock = stock
        self._renew = renew
        self._kick = asyncio.Event()
        self._room = asyncio.Semaphore(stock.settings.refill)
        self._making: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._settled: list[asyncio.Future[None]] = []
        self._begun_ns = 0

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.ensure_future(self._run())

    def kick(self) -> None:
        """Something has changed."""
        self._kick.set()

    def lacks(self, shelf: Shelf) -> bool:
        """One more would be welcome there."""
        return len(shelf.idle) + shelf.coming < self._wanted(shelf, now_ns())

    async def settled(self) -> None:
        """Until every target is met and nothing is on its way, or a target cannot be met for now."""
        while self._owed():
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(waiting)
            self.kick()
            await waiting

    async def close(self) -> None:
        """Stop, and take back what is on its way."""
        tasks = [task for task in (self._task, *self._making) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await finish(_ended(tasks))
        self._wake()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._kick.wait()
            except TimeoutError:
                await self._renew()
            self._kick.clear()
            self._trim()
            while (shelf := self._next()) is not None:
                if not self._may(shelf):
                    await asyncio.sleep(BUSY_PAUSE_S)
                    continue
                await self._room.acquire()
                self._begin(self._next())  # another may lack more by now, or none any more
            if not self._owed():
                self._wake()

    def _begin(self, shelf: Shelf | None) -> None:
        if shelf is None or not self._stock.room.take(shelf.plan.weight_bytes):
            self._room.release()
            return
        shelf.coming += 1
        self._begun_ns = now_ns()
        task = asyncio.ensure_future(self._make(shelf))
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _make(self, shelf: Shelf) -> None:
        stock, plan = self._stock, shelf.plan
        start_ns = now_ns()
        fault.at("dutyfree.warm.refill")
        try:
            box = await stock.make(plan, plan.stock_spec())
        except (DutyfreeError, OSError):
            # The caller who needs it will see the error itself. Here it means: not now, and later each time.
            shelf.failures += 1
            rest_s = min(LONGEST_REST_S, 2.0**shelf.failures / 2)
            shelf.rest_until_ns = now_ns() + int(rest_s * 1e9)
            stock.counters.refill_failures += 1
        else:
            took_s = (now_ns() - start_ns) / 1e9
            shelf.learn(took_s)
            stock.counters.refills += 1
            stock.put(shelf, Idle(box, now_ns(), took_s))
        finally:
            shelf.coming -= 1
            self._room.release()
            self.kick()
            self._wake()

    def _next(self) -> Shelf | None:
        """The shelf that lacks most, relative to what it should hold."""
        stock = self._stock
        if stock.queue or stock.closed:
            return None
        now, spare = now_ns(), stock.settings.idle - stock.idle
        lacking: list[tuple[float, Shelf]] = []
        for shelf in stock.shelves.values():
            wanted, there = self._wanted(shelf, now), len(shelf.idle) + shelf.coming
            if there >= wanted or shelf.rest_until_ns > now or not stock.room.fits(shelf.plan.weight_bytes):
                continue
            if shelf.target or spare > 0:
                lacking.append((there / wanted, shelf))
        return min(lacking, key=lambda one: one[0])[1] if lacking else None

    def _wanted(self, shelf: Shelf, now: int) -> int:
        if shelf.target:
            return shelf.target
        settings = self._stock.settings
        return min(settings.idle, shelf.demand.wanted(now / 1e9, shelf.ready_s)) if settings.demand else 0

    def _may(self, shelf: Shelf) -> bool:
        """Memory is there, and a processor is free or somebody would have to wait."""
        if _free_share() < LEAST_FREE_SHARE:
            return False
        wanted = self._wanted(shelf, now_ns())
        starving = len(shelf.idle) + shelf.coming < _STARVING * wanted and not self._making
        paced = now_ns() - self._begun_ns > BUSY_PACE_NS
        return starving or paced or _runnable() <= (os.cpu_count() or 1)

    def _trim(self) -> None:
        """Give up what is too many for long enough: the oldest of it."""
        now = now_ns()
        for shelf in self._stock.shelves.values():
            wanted = self._wanted(shelf, now)
            while len(shelf.idle) > wanted and now - shelf.idle[0].since_ns > SPARED_NS:
                self._stock.waste(shelf)

    def _owed(self) -> bool:
        """A target is not met yet, and one more is on its way or can be."""
        stock, now = self._stock, now_ns()
        if stock.closed or stock.queue:
            return False
        return any(
            len(shelf.idle) < shelf.target
            and shelf.rest_until_ns <= now
            and (shelf.coming > 0 or stock.room.fits(shelf.plan.weight_bytes))
            for shelf in stock.shelves.values()
        )

    def _wake(self) -> None:
        waiting, self._settled = self._settled, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


def _runnable() -> int:
    """Threads of the machine that run or could, besides ourselves, right now."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(128).split()[3].partition(b"/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0


def _free_share() -> float:
    pages = os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo", "rb", buffering=0) as file:
            for line in file.read(4096).splitlines():
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024 / (pages * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        pass
    return 1.0


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
