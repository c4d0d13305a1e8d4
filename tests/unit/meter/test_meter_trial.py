"""A trial gives back exactly the delays of a substrate whose delays are known, and survives everything else."""

import asyncio
from dataclasses import replace

import pytest
from synthetic import MS, Delays, Faults, SyntheticSubstrate, VirtualClock

from dutyfree.core.spec import Spec
from dutyfree.meter import trial as trial_module
from dutyfree.meter.plan import Cell, Trial
from dutyfree.meter.record import COMPONENTS
from dutyfree.meter.source import Source
from dutyfree.meter.subject import Subject
from dutyfree.meter.trial import Setting, run_trial
from dutyfree.meter.workloads import tier0


def run_one(substrate, *, steps=10, deadline_s=30.0, profile="controlled", hollow=False, trials=1, workload=None):
    async def go():
        subject = Subject(label="synthetic", name="synthetic", substrate=substrate, hollow=hollow)
        source = Source(subject=subject, workload=workload or tier0.workload(), spec=Spec(), profile=profile)
        setting = Setting(host="h", seed=1, deadline_s=deadline_s, warm=True, clock=substrate.clock)
        trial = Trial(cell=Cell(substrate="synthetic", tier="T0", steps=steps), block=0)
        await source.open()
        records = [await run_trial(source, trial, setting, order) for order in range(trials)]
        await source.close()
        return records

    return asyncio.run(go())


def test_every_component_is_the_delay_it_was_given():
    delays = Delays()
    (record,) = run_one(SyntheticSubstrate(), steps=10)
    assert record.ok, record.failure_message
    assert record.create_ns == delays.create
    assert record.ready_ns == delays.ready
    assert record.dispatch_ns == 10 * delays.dispatch
    assert record.run_ns == 10 * delays.run
    assert record.orchestration_ns == delays.queue
    assert record.destroy_ns == delays.destroy
    assert record.setup_ns == record.reset_ns == 0
    assert record.actions_ns == [delays.run + delays.dispatch] * 10


def test_components_sum_to_the_total():
    (record,) = run_one(SyntheticSubstrate(), steps=50)
    assert sum(getattr(record, f"{name}_ns") for name in COMPONENTS) == record.total_ns


def test_a_cold_start_ends_with_the_first_result_and_leaves_the_teardown_out():
    delays = Delays()
    (record,) = run_one(SyntheticSubstrate(), steps=0)
    expected = delays.queue + delays.create + delays.ready + delays.dispatch + delays.run
    assert record.first_result_ns == record.total_ns == expected
    assert record.destroy_ns == 0
    assert record.teardown_ns == delays.destroy


def test_a_state_that_the_tier_takes_as_given_is_in_no_time(tmp_path):
    (tmp_path / "tree").mkdir()
    given = replace(tier0.workload(), uploads=((tmp_path / "tree", "repo"),), directory="repo", preloaded=True)
    paid = replace(given, preloaded=False)
    (one,), (other,) = (run_one(SyntheticSubstrate(), workload=work) for work in (given, paid))
    assert (one.preload_ns, one.setup_ns) == (Delays().upload + Delays().dispatch + Delays().run, 0)
    assert other.setup_ns == one.preload_ns
    assert other.total_ns - one.total_ns == one.preload_ns
    assert sum(getattr(one, f"{name}_ns") for name in COMPONENTS) == one.total_ns


def test_exit_codes_and_processor_time_of_actions_are_kept():
    (record,) = run_one(SyntheticSubstrate())
    assert record.exit_codes == [0] * 10


def test_a_wrong_answer_fails_the_trial_at_its_action():
    substrate = SyntheticSubstrate(faults=Faults(nonsense_at=5))
    (record,) = run_one(substrate)
    assert not record.ok
    assert record.failure_kind == "wrong-answer"
    assert record.failure_action == 4
    assert "nonsense" in record.failure_message
    assert substrate.living == 0


def test_a_sandbox_that_dies_is_a_record_with_its_reason():
    substrate = SyntheticSubstrate(faults=Faults(lose_at=3))
    (record,) = run_one(substrate)
    assert (record.ok, record.failure_kind, record.failure_action) == (False, "SandboxLost", 2)
    assert len(record.actions_ns) == 2


def test_a_trial_that_hangs_ends_at_its_deadline_and_leaves_no_sandbox():
    substrate = SyntheticSubstrate(faults=Faults(hang_at=2))
    (record,) = run_one(substrate, deadline_s=0.05)
    assert record.failure_kind == "deadline"
    assert substrate.living == 0


def test_a_failing_create_is_recorded_as_the_substrate_s_failure():
    (record,) = run_one(SyntheticSubstrate(faults=Faults(images=frozenset())))
    assert record.failure_kind == "Misuse"
    assert record.failure_action is None


def test_a_hollow_substrate_is_not_judged():
    (record,) = run_one(SyntheticSubstrate(faults=Faults(nonsense_at=5)), hollow=True)
    assert record.ok


def test_cancelling_a_trial_raises_and_leaves_no_sandbox():
    substrate = SyntheticSubstrate(faults=Faults(hang_at=2))

    async def go():
        subject = Subject(label="s", name="s", substrate=substrate)
        source = Source(subject=subject, workload=tier0.workload(), spec=Spec(), profile="controlled")
        setting = Setting(host="h", seed=1, deadline_s=30, warm=True, clock=substrate.clock)
        trial = Trial(cell=Cell(substrate="s", tier="T0", steps=10), block=0)
        task = asyncio.create_task(run_trial(source, trial, setting, 0))
        await substrate.faults.hanging.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert substrate.living == 0


def test_the_optimised_profile_resets_and_keeps_sandboxes():
    substrate = SyntheticSubstrate(resets=True)
    first, second = run_one(substrate, profile="optimised", trials=2)
    assert (first.start, second.start) == ("fresh", "reset")
    assert first.reset_ns == second.reset_ns == 6 * MS
    assert second.create_ns == second.destroy_ns == 0
    assert len(substrate.made) == 1
    assert substrate.living == 0


def test_the_controlled_profile_never_reuses():
    substrate = SyntheticSubstrate(resets=True)
    run_one(substrate, trials=2)
    assert len(substrate.made) == 2


def test_the_optimised_profile_forks_where_it_can_and_leaves_nothing():
    substrate = SyntheticSubstrate(forks=True, resets=True)
    records = run_one(substrate, profile="optimised", trials=2)
    assert all(record.ok for record in records), records[0].failure_message
    assert [record.start for record in records] == ["fork", "fork"]
    assert all(record.create_ns == 1 * MS and record.setup_ns == 0 for record in records)
    assert len(substrate.made) == 3
    assert substrate.living == 0


def test_think_time_is_drawn_by_the_seed_and_is_in_no_other_time():
    pausing = replace(tier0.workload(), think_s=(0.001, 0.002, 0.003))
    clock = Ticking()
    (one,) = run_one(SyntheticSubstrate(clock=clock), workload=pausing)
    (other,) = run_one(SyntheticSubstrate(clock=Ticking()), workload=pausing)
    (plain,) = run_one(SyntheticSubstrate())
    assert one.think_ns == other.think_ns == clock.paused > 0
    assert one.total_ns == plain.total_ns
    assert sum(getattr(one, f"{name}_ns") for name in COMPONENTS) == one.total_ns


class Ticking(VirtualClock):
    """A virtual clock on which pauses pass: an hour for each look before an action."""

    def __init__(self):
        super().__init__()
        self.paused = 0

    def pause(self, seconds):
        self.advance(int(seconds * 1e9))
        self.paused += int(seconds * 1e9)


@pytest.fixture(autouse=True)
def pauses_pass_on_the_virtual_clock(monkeypatch):
    async def think(pause_s, clock, tape):
        await real(pause_s, Paused(clock, pause_s), tape)

    real = trial_module._think
    monkeypatch.setattr(trial_module, "_think", think)


class Paused:
    """Reads the clock before and after a pause, and lets it pass in between."""

    def __init__(self, clock, pause_s):
        self.clock, self.pause_s, self.looks = clock, pause_s, 0

    def __call__(self):
        self.looks += 1
        if self.looks == 2:
            self.clock.pause(self.pause_s)
        return self.clock()
