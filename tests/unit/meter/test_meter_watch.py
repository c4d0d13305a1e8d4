"""The whole machine beside a cohort: processor time of everybody, memory while sandboxes live."""

import asyncio
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from synthetic import SyntheticSubstrate, VirtualClock

from dutyfree.meter import campaign
from dutyfree.meter.campaign import Choices
from dutyfree.meter.store import load
from dutyfree.meter.subject import Subject
from dutyfree.meter.summary import results
from dutyfree.meter.watch import PERIOD_S, watch
from dutyfree.meter.workloads import live, tier0
from dutyfree.report import load as loads


def test_processor_time_of_other_processes_counts_too():
    with watch(2, quiet_share=0.0, memory=False) as seen:
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.4: pass"], check=True)
    assert seen.cpu_ns >= 150_000_000
    assert seen.memory_bytes is None


def test_memory_is_the_most_that_was_taken_over_the_live_ones():
    with watch(4, quiet_share=0.0, memory=True) as seen:
        held = bytearray(600 << 20)
        for place in range(0, len(held), 4096):
            held[place] = 1
        time.sleep(3 * PERIOD_S)
        del held
    # Others may free memory meanwhile: a part of it is always seen.
    assert seen.memory_bytes > 20 << 20


def test_the_mix_is_that_of_the_rollouts_and_so_are_the_pauses():
    share = {verb: live.VERBS.count(verb) / len(live.VERBS) for verb in set(live.VERBS)}
    told = {"cat": 0.254, "grep": 0.226, "python": 0.208, "sed": 0.129, "find": 0.057, "git": 0.031}
    assert all(share[verb] == pytest.approx(part, abs=0.05) for verb, part in told.items())
    assert sum(live.THINK_S) / len(live.THINK_S) == pytest.approx(live.THINK_MEAN_S, rel=0.06)


def test_sandboxes_that_think_beside_each_other_are_a_row_of_the_load(tmp_path):
    clock = VirtualClock()
    work = replace(tier0.workload(), tier="live", think_s=(0.001,))
    choices = Choices(steps=(10,), trials=4, parallel=(1, 4), warmup=0)

    async def go():
        subject = Subject(label="host", name="host", substrate=SyntheticSubstrate(clock=clock))
        prepared = await campaign.prepare(tmp_path, [subject], [work], choices)
        await campaign.run(tmp_path, prepared, choices, clock=clock)

    asyncio.run(go())
    run = load([tmp_path])
    rows = loads.table(results(run.records), run.manifest).rows
    assert [row[2:4] for row in rows] == [["1", "4/4"], ["4", "4/4"]]
    assert all(record.machine_cpu_ns is not None and record.live_bytes is not None for record in run.records)
