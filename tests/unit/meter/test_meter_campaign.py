"""Whole campaigns: repeatable, resumable, and exact on substrates whose delays are known."""

import asyncio
import threading
from dataclasses import replace

import pytest
from runs import measure
from synthetic import MS, Delays, SyntheticSubstrate, VirtualClock

from dutyfree.core.errors import Misuse
from dutyfree.meter import campaign, manifest
from dutyfree.meter.campaign import Choices
from dutyfree.meter.fingerprint import code
from dutyfree.meter.projection import curves, worker_hours
from dutyfree.meter.stability import FEW
from dutyfree.meter.store import read_manifest, read_records
from dutyfree.meter.subject import Subject
from dutyfree.meter.summary import results
from dutyfree.meter.workloads import tier0

TWO = {"host": Delays(), "slow": Delays(create=200 * MS, dispatch=20 * MS)}
CHOICES = Choices(steps=(0, 10, 20), trials=3, seed=5, warmup=1, deadline_s=60)


def trials(directory):
    records, problems = read_records(directory)
    assert not problems
    return [(r.order, r.id, r.ok, r.total_ns, r.actions_ns) for r in records]


def test_two_runs_with_the_same_seed_have_the_same_trials_and_commands(tmp_path):
    for name in ("a", "b"):
        measure(tmp_path / name, TWO, CHOICES)
    assert trials(tmp_path / "a") == trials(tmp_path / "b")
    a, b = read_manifest(tmp_path / "a"), read_manifest(tmp_path / "b")
    assert a["workloads"] == b["workloads"]
    assert a["identity"] == b["identity"]


@pytest.mark.parametrize("stop_after", [1, 7, 19])
def test_interrupted_and_resumed_is_uninterrupted_trial_for_trial(tmp_path, stop_after):
    measure(tmp_path / "whole", TWO, CHOICES)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path / "cut", TWO, CHOICES, stop_after=stop_after)
    assert len(trials(tmp_path / "cut")) == stop_after
    measure(tmp_path / "cut", TWO, CHOICES)
    assert trials(tmp_path / "cut") == trials(tmp_path / "whole")


def test_a_finished_run_is_not_measured_again(tmp_path):
    measure(tmp_path, TWO, CHOICES)
    before = trials(tmp_path)
    measure(tmp_path, TWO, CHOICES)
    assert trials(tmp_path) == before


def test_more_trials_extend_a_run(tmp_path):
    measure(tmp_path, TWO, CHOICES)
    before = trials(tmp_path)
    measure(tmp_path, TWO, Choices(steps=(0, 10, 20), trials=5, seed=5, warmup=1, deadline_s=60))
    after = trials(tmp_path)
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2 * 6


def test_a_slow_substrate_may_have_fewer_trials_and_they_stand_in_the_middle_of_the_run(tmp_path):
    measure(tmp_path, TWO, replace(CHOICES, trials_for={"slow": 1}))
    records, _ = read_records(tmp_path)
    measured = [(r.substrate, r.block) for r in records if not r.warmup]
    assert sorted(set(measured)) == [("host", 0), ("host", 1), ("host", 2), ("slow", 0)]
    places = [i for i, (name, _) in enumerate(measured) if name == "slow"]
    assert places[0] > 0
    assert places[-1] < len(measured) - 1


def test_trials_for_a_substrate_that_is_not_measured_are_refused(tmp_path):
    with pytest.raises(Misuse, match="quick is not among"):
        measure(tmp_path, TWO, replace(CHOICES, trials_for={"quick": 1}))


@pytest.mark.parametrize("other", [{"seed": 6}, {"steps": (0, 10)}, {"profile": "optimised"}])
def test_a_directory_of_another_plan_is_refused(tmp_path, other):
    measure(tmp_path, TWO, CHOICES)
    changed = {"steps": (0, 10, 20), "trials": 3, "seed": 5, "warmup": 1, "deadline_s": 60} | other
    with pytest.raises(Misuse, match="another protocol"):
        measure(tmp_path, TWO, Choices(**changed))


def test_another_version_of_the_code_does_not_go_on_with_a_run(tmp_path, monkeypatch):
    measure(tmp_path, TWO, CHOICES)
    monkeypatch.setattr(manifest, "code", lambda: {"digest": "another", "commit": None})
    with pytest.raises(Misuse, match="another version of dutyfree"):
        measure(tmp_path, TWO, CHOICES)


def test_the_manifest_names_the_code_and_what_was_in_stock(tmp_path):
    measure(tmp_path, TWO, CHOICES)
    found = read_manifest(tmp_path)
    assert len(found["code"]["digest"]) == 16
    assert found["code"] == code()
    assert {subject["stock"] for subject in found["subjects"].values()} == {0}


def test_nothing_of_the_meter_runs_while_a_trial_does(tmp_path):
    """Trajectories are worked out before a cohort's clocks start, once, and off the loop on which they run."""
    clock, seen = VirtualClock(), []
    substrate = SyntheticSubstrate(clock=clock)
    plain = tier0.workload()

    def actions(steps):
        seen.append((steps, substrate.living, threading.current_thread() is threading.main_thread()))
        return plain.actions(steps)

    choices = Choices(steps=(10, 20), trials=8, parallel=(1, 4), warmup=0)

    async def go():
        subject = Subject(label="host", name="host", substrate=substrate)
        prepared = await campaign.prepare(tmp_path, [subject], [replace(plain, actions=actions)], choices)
        seen.clear()  # of the digest in the manifest
        await campaign.run(tmp_path, prepared, choices, clock=clock)

    asyncio.run(go())
    assert sorted(seen) == [(10, 0, False), (20, 0, False)]


def test_parallel_trials_are_each_recorded(tmp_path):
    measure(tmp_path, {"host": Delays()}, Choices(steps=(10,), trials=4, parallel=(1, 2), warmup=0))
    records, _ = read_records(tmp_path)
    assert sorted(r.parallel for r in records) == [1] * 4 + [2] * 4
    assert all(r.ok for r in records)


def test_the_study_s_worker_hours_come_back_from_substrates_with_its_delays(tmp_path):
    """6,495 and 11,811 hours per million: 23.382 s and 42.5196 s for 150 actions."""
    fixed = {"queue": 0, "create": 0, "ready": 0, "destroy": 0}
    fast = Delays(**fixed, dispatch=5_880_000, run=150 * MS)
    slow = Delays(**fixed, dispatch=133_464_000, run=150 * MS)
    measure(tmp_path, {"fast": fast, "slow": slow}, Choices(steps=(10, 150), trials=2, warmup=0, deadline_s=60))
    quick, late = curves(results(read_records(tmp_path)[0]), "T0")
    assert (quick.name, late.name) == ("fast", "slow")
    assert round(worker_hours(1_000_000, quick.seconds(150))) == 6_495
    assert round(worker_hours(1_000_000, late.seconds(150))) == 11_811
    assert round(worker_hours(1_000_000, late.seconds(150) - quick.seconds(150))) == 5_316


def test_a_quick_look_has_enough_trials_for_a_tax_and_little_of_what_nobody_named():
    docker, gvisor = "docker?dispatch=api", "gvisor?dispatch=api"
    quick = Choices(quick=True, unasked=frozenset({"host", docker}))
    for label in ("host", gvisor):
        for tier in ("T0", "T1", "T2"):
            assert all(quick.count(label, tier, steps) >= FEW for steps in (0, 150))
    assert [quick.count(docker, "T0", steps, slow=True) for steps in (0, 10, 150)] == [8, 8, 0]
    assert quick.count(docker, "T2", 150, slow=True) == 0
    assert quick.count(docker, "T2", 150) == quick.count("host", "T2", 150), "no rule names a substrate"


def test_more_trials_of_a_quick_look_are_of_the_same_cells():
    more = Choices(quick=True, trials=30, unasked=frozenset({"host", "docker"}))
    assert [more.count("docker", "T0", steps, slow=True) for steps in (0, 150)] == [30, 0]
    assert more.count("host", "T2", 150) == 30
