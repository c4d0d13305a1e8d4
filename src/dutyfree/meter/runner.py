"""Runs a plan over subjects and workloads, and appends each cohort's records as soon as it is over.

Sequential between cohorts; the trials of one cohort run together. Reports progress through a callback, prints
nothing. Interrupted at any point, the directory holds every cohort that ended, and the rest of the plan can follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.meter.exercise import exercise
from dutyfree.meter.fingerprint import steal_ns
from dutyfree.meter.plan import Cell, Cohort
from dutyfree.meter.record import Profile, Record
from dutyfree.meter.source import Source
from dutyfree.meter.store import RecordWriter
from dutyfree.meter.subject import Subject
from dutyfree.meter.training import train
from dutyfree.meter.trial import Body, Setting, attempt, write_down
from dutyfree.meter.watch import watch
from dutyfree.meter.workload import Workload

Progress = Callable[[Cohort, list[Record]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Everything to measure: each offered combination of subject and workload, with its sandbox's spec."""

    subjects: Mapping[str, Subject]
    workloads: Mapping[str, Workload]
    specs: Mapping[tuple[str, str], Spec]
    """Specs by subject and tier."""
    profile: Profile = "controlled"
    server: tuple[str, int] | None = None
    unreached: frozenset[tuple[str, str]] = frozenset()
    """Subjects and tiers from which there is no way to the server."""


async def run_plan(
    bench: Bench,
    cohorts: Iterable[Cohort],
    setting: Setting,
    writer: RecordWriter,
    *,
    first_order: int = 0,
    progress: Progress | None = None,
) -> None:
    """Run every cohort in order; records are in the file before `progress` hears of them."""
    order = first_order
    async with AsyncExitStack() as stack:
        sources: dict[tuple[str, str], Source] = {}
        for cohort in cohorts:
            source = await _source(bench, cohort[0].cell, sources, stack)
            records = await _run_cohort(source, cohort, setting, order)
            writer.append(records)
            order += len(cohort)
            if progress is not None:
                progress(cohort, records)


async def _source(bench: Bench, cell: Cell, sources: dict[tuple[str, str], Source], stack: AsyncExitStack) -> Source:
    key = (cell.substrate, cell.tier)
    if key not in sources:
        source = Source(
            subject=bench.subjects[cell.substrate],
            workload=bench.workloads[cell.tier],
            spec=bench.specs[key],
            profile=bench.profile,
            server=None if key in bench.unreached else bench.server,
        )
        stack.push_async_callback(lambda: finish(source.close()))
        await source.open()
        sources[key] = source
    return sources[key]


def _body(workload: Workload) -> Body | None:
    if workload.exercise is not None:
        return exercise
    return train if workload.training is not None else None


async def _run_cohort(source: Source, cohort: Cohort, setting: Setting, order: int) -> list[Record]:
    """Everything of the meter's own is before the first trial of the cohort or after the last."""
    body = _body(source.workload)
    await source.prepare(cohort[0].cell.steps)
    settled_ns = await setting.settler.wait()
    stolen = steal_ns()
    live = bool(source.workload.think_s)
    with watch(len(cohort), quiet_share=setting.settler.quiet_share, memory=live) as watched:
        if len(cohort) == 1:
            attempts = [await attempt(source, cohort[0], setting, body)]
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(attempt(source, trial, setting, body)) for trial in cohort]
            attempts = [task.result() for task in tasks]
    stolen = steal_ns() - stolen
    return [
        write_down(
            source, trial, setting, done, order=order + i, stolen_ns=stolen, settled_ns=settled_ns, watched=watched
        )
        for i, (trial, done) in enumerate(zip(cohort, attempts, strict=True))
    ]
