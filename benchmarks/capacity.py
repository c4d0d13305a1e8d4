"""Many sandboxes: how fast they come and go, what each costs while it lives, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from asyncio import Runner
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import dutyfree
from benchmarks.interleave import Records, now_ns
from benchmarks.native import SPEC, check, create_and_run, opened
from benchmarks.processes import Activity, Holdings, activity, available_bytes, descendants, holdings, is_agent

T = TypeVar("T")

IN_FLIGHT = 8
IDLE_S = 10.0
EDGE = 50
"""Creations at either end that are compared."""
SETTLED_S = 5.0
"""How long refilling and freeing may take before what is still there counts as left behind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """Create, run and destroy, several in flight."""

    seconds: float
    finished: int
    failures: int
    left: list[str]
    """What there was more of afterwards: with the substrate still open, and after it was closed."""

    @property
    def rate_s(self) -> float:
        """Sandboxes per second."""
        return self.finished / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """Sandboxes alive at once and idle."""

    boxes: int
    bytes_each: float
    first_ns: float
    """Median of the first creations."""
    last_ns: float
    """Median of the last ones, with all others alive."""
    idle_s: float
    watched: int
    """Agents that were looked at, those of blanks included."""
    agents: Activity
    spawner: Activity
    owner: Activity
    """This process, which waits in its event loop: the wake-up by the timer that ends the wait is its own."""
    left: list[str]


def throughput(runner: Runner, seconds: float, records: Records) -> Throughput:
    before = holdings([])
    with opened(runner) as substrate:
        spawners = descendants(os.getpid())[:1]
        # As many as there will be, and those that are being freed: what the spawner keeps per place is then there.
        runner.run(_destroy_all(runner.run(_create_all(substrate, 2 * IN_FLIGHT, None))[1]))
        open_before = _settled(lambda: holdings(spawners))
        finished, failures, elapsed_s = runner.run(_churn(substrate, seconds, records))
        left = [f"{text} while open" for text in _growth_after(open_before, spawners)]
    left += [f"{text} after closing" for text in _growth_after(before, spawners)]
    return Throughput(seconds=elapsed_s, finished=finished, failures=failures, left=left)


async def _churn(substrate: dutyfree.Substrate, seconds: float, records: Records) -> tuple[int, int, float]:
    start_ns = now_ns()
    end_ns = start_ns + int(seconds * 1e9)
    times: list[int] = []
    failures: list[str] = []

    async def worker() -> None:
        while (begun_ns := now_ns()) < end_ns:
            try:
                async with substrate.create(SPEC) as box:
                    check(await box.run(["true"]))
            except (dutyfree.DutyfreeError, OSError, RuntimeError) as error:
                failures.append(f"{type(error).__name__}: {error}")
            else:
                times.append(now_ns() - begun_ns)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(worker())
    elapsed_s = (now_ns() - start_ns) / 1e9
    for time_ns in times:
        records.add(phase="throughput", contender="native/churn", ns=time_ns, failure=None)
    for failure in failures:
        records.add(phase="throughput", contender="native/churn", ns=None, failure=failure)
    return len(times), len(failures), elapsed_s


def crowd(runner: Runner, count: int, records: Records) -> Crowd:
    before = holdings([])
    with opened(runner) as substrate:
        spawners = descendants(os.getpid())[:1]
        runner.run(create_and_run(substrate))
        _settled(lambda: len(descendants(os.getpid())))
        free_bytes = available_bytes()
        times_ns, boxes = runner.run(_create_all(substrate, count, records))
        _settled(lambda: len(descendants(os.getpid())))
        bytes_each = (free_bytes - available_bytes()) / count
        watched, agents, spawner, owner = runner.run(_idle(spawners))
        runner.run(_destroy_all(boxes))
    edge = min(EDGE, count // 2)
    return Crowd(
        boxes=count, bytes_each=bytes_each, first_ns=statistics.median(times_ns[:edge]),
        last_ns=statistics.median(times_ns[-edge:]), idle_s=IDLE_S, watched=watched, agents=agents, spawner=spawner, owner=owner,
        left=_growth_after(before, spawners),
    )  # fmt: skip


async def _create_all(
    substrate: dutyfree.Substrate, count: int, records: Records | None
) -> tuple[list[int], list[dutyfree.Sandbox]]:
    times_ns: list[int] = []
    boxes: list[dutyfree.Sandbox] = []
    for number in range(count):
        start_ns = now_ns()
        boxes.append(await substrate.create(SPEC))
        times_ns.append(now_ns() - start_ns)
        if records is not None:
            records.add(phase="crowd", round=number, contender="native/crowd", ns=times_ns[-1], failure=None)
    return times_ns, boxes


async def _destroy_all(boxes: list[dutyfree.Sandbox]) -> None:
    for box in boxes:
        await box.destroy()


async def _idle(spawners: list[int]) -> tuple[int, Activity, Activity, Activity]:
    """What happens while nothing is asked, with the event loop waiting as a caller's would."""
    agents = [pid for pid in descendants(os.getpid()) if is_agent(pid)]
    sets = (agents, spawners, [os.getpid()])
    before = [activity(pids) for pids in sets]
    await asyncio.sleep(IDLE_S)
    # This process first, as it was last before: looking at a thousand others wakes it up too.
    after = [activity(pids) for pids in reversed(sets)][::-1]
    agent, spawner, owner = (
        Activity(wake_ups=b.wake_ups - a.wake_ups, cpu_ns=b.cpu_ns - a.cpu_ns)
        for a, b in zip(before, after, strict=True)
    )
    return len(agents), agent, spawner, owner


def _settled(look: Callable[[], T]) -> T:
    """What `look` sees once it has seen the same twice, 0.2 s apart; or after `SETTLED_S`."""
    end_s = time.monotonic() + SETTLED_S
    seen = look()
    while time.monotonic() < end_s:
        time.sleep(0.2)
        again = look()
        if again == seen:
            return again
        seen = again
    return seen


def _growth_after(before: Holdings, spawners: list[int]) -> list[str]:
    end_s = time.monotonic() + SETTLED_S
    while growth := holdings(spawners).growth(before):
        if time.monotonic() > end_s:
            return growth
        time.sleep(0.1)
    return []
