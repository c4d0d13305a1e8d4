"""`reset` and `fork` as trials: a sandbox is created and used, then the ability is timed to the first results after it.

Creating and using the sandbox is not part of the time, and neither is the check that the ability did what it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import TypeVar

from dutyfree.core.contract import Sandbox
from dutyfree.core.pending import finish
from dutyfree.meter.plan import Trial
from dutyfree.meter.source import Source
from dutyfree.meter.trial import FIRST, Setting, Tape, check, destroy
from dutyfree.meter.workload import CheckFailed, Exercise

T = TypeVar("T")


async def exercise(source: Source, trial: Trial, setting: Setting, tape: Tape) -> None:
    """Fill the tape with one use of the ability."""
    wanted = source.workload.exercise
    if wanted is None:
        raise CheckFailed(f"tier {trial.cell.tier} has no ability to exercise")
    box = await source.subject.substrate.create(source.spec)
    try:
        await check(source, box, wanted.dirty)
        tape.begin_ns = setting.clock()
        if wanted.ability == "reset":
            await _reset(source, box, wanted, setting, tape)
        else:
            await _fork(source, box, wanted, setting, tape)
    finally:
        await finish(destroy(box, setting, tape))


async def _reset(source: Source, box: Sandbox, wanted: Exercise, setting: Setting, tape: Tape) -> None:
    tape.start = "reset"
    await box.reset()
    tape.reset_ns = setting.clock() - tape.begin_ns
    took, own = await _first(source, box, setting)
    tape.end_ns = setting.clock()
    tape.actions.append(took)
    tape.runs.append(own)
    tape.first_result_ns = tape.end_ns - tape.begin_ns
    await check(source, box, wanted.after)


async def _fork(source: Source, box: Sandbox, wanted: Exercise, setting: Setting, tape: Tape) -> None:
    """All forks at once; the slowest first result ends the time, and is the one that counts as the action."""
    tape.start = "fork"
    async with AsyncExitStack() as stack:
        pending = await box.fork(wanted.forks)
        children = await _all(*(stack.enter_async_context(one) for one in pending))
        tape.create_ns = setting.clock() - tape.begin_ns
        results = await _all(*(_first(source, child, setting) for child in children))
        tape.end_ns = setting.clock()
        slowest = max(results)
        tape.actions.append(slowest[0])
        tape.runs.append(slowest[1])
        tape.first_result_ns = tape.create_ns + min(took for took, _ in results)
        for child in children:
            await check(source, child, wanted.after)


async def _all(*work: Awaitable[T]) -> list[T]:
    """Together, each to its end: a failure is raised when nothing is under way any more."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]


async def _first(source: Source, box: Sandbox, setting: Setting) -> tuple[int, int]:
    """The first result: nanoseconds, and the command's own."""
    begin = setting.clock()
    out = await box.run(FIRST.command)
    took = setting.clock() - begin
    fault = FIRST.check.fault(out)
    if fault is not None and not source.subject.hollow:
        raise CheckFailed(f"the first command: {fault}")
    return took, min(out.run_ns, took)
