"""Sandboxes that live beside each other: throughput, latency, memory, and the whole machine's processor time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dutyfree.meter.summary import INSTRUMENT, Result
from dutyfree.report.text import NONE, Table, count, seconds, steps


def table(found: Sequence[Result], manifest: Mapping[str, Any]) -> Table:
    """A row for each configuration whose records know the machine's processor time."""
    cpus = manifest["host"]["cpus"]
    rows = [
        [
            f"{r.key.tier} {steps(r.key.steps)}",
            r.title,
            str(r.key.parallel),
            f"{r.n - r.failed}/{r.n}",
            count(r.load.rollouts_per_hour / cpus),
            seconds(r.load.action_p95_s),
            seconds(r.load.think_s),
            seconds(r.load.machine_cpu_s),
            NONE if r.load.memory_bytes is None else f"{r.load.memory_bytes / (1 << 20):,.1f} MiB",
        ]
        for r in found
        if r.load is not None and r.key.substrate != INSTRUMENT
    ]
    return Table(
        title="Load: what one rollout costs the whole machine",
        columns=["what", "substrate", "in flight", "ok", "rollouts per core-hour", "one action p95", "think time",
                 "processor time, all of the machine", "memory while live"],
        rows=rows,
        note="Processor time is everything that any process or the kernel worked meanwhile, creation and removal included, "
        "less what the machine worked when it was quiet before the run, over the rollouts in flight. Memory is the "
        "machine's available memory before less the least seen, over the live sandboxes. Both are wrong where others use "
        "the machine. Think time is in no other time; it is a part of the hour."
        if rows
        else "Not measured in this run: `dutyfree measure --tier live --parallel 1,8,32 --steps 20 -o DIR`.",
    )  # fmt: skip
