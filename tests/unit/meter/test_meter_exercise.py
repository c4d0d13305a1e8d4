"""reset and fork as tiers of their own: the time of the ability to the first result, and what must hold after it."""

import asyncio
import json

import pytest
from synthetic import Delays, SyntheticSubstrate

from dutyfree.core.spec import Spec
from dutyfree.meter import campaign
from dutyfree.meter.campaign import Choices
from dutyfree.meter.exercise import exercise
from dutyfree.meter.plan import Cell, Trial
from dutyfree.meter.record import COMPONENTS
from dutyfree.meter.source import Source
from dutyfree.meter.store import read_records
from dutyfree.meter.subject import Subject, examine
from dutyfree.meter.trial import Setting, run_trial
from dutyfree.meter.workloads import ability


def run_one(substrate, workload):
    async def go():
        subject = Subject(label="synthetic", name="synthetic", substrate=substrate)
        source = Source(subject=subject, workload=workload, spec=Spec(), profile="controlled")
        setting = Setting(host="h", seed=1, deadline_s=30.0, warm=True, clock=substrate.clock)
        trial = Trial(cell=Cell(substrate="synthetic", tier=workload.tier, steps=0), block=0)
        return await run_trial(source, trial, setting, 0, exercise)

    return asyncio.run(go())


def test_a_reset_is_timed_from_the_request_to_the_first_result_after_it():
    delays = Delays()
    substrate = SyntheticSubstrate(resets=True)
    record = run_one(substrate, ability.reset())
    assert record.ok, record.failure_message
    assert record.reset_ns == delays.reset
    assert record.total_ns == record.first_result_ns == delays.reset + delays.dispatch + delays.run
    assert (record.start, record.create_ns, record.setup_ns) == ("reset", 0, 0)
    assert sum(getattr(record, f"{name}_ns") for name in COMPONENTS) == record.total_ns
    assert substrate.living == 0


class Forgetful(SyntheticSubstrate):
    """Says that it has reset the sandbox."""

    async def _create(self, spec):
        box = await super()._create(spec)

        async def reset():
            return

        box.reset = reset
        return box


def test_a_reset_that_leaves_files_behind_fails_the_trial():
    substrate = Forgetful(resets=True)
    record = run_one(substrate, ability.reset())
    assert (record.ok, record.failure_kind) == (False, "wrong-answer")
    assert substrate.living == 0


def test_a_fork_is_timed_to_the_first_result_of_every_child():
    delays = Delays()
    substrate = SyntheticSubstrate(forks=True)
    record = run_one(substrate, ability.fork())
    assert record.ok, record.failure_message
    assert record.start == "fork"
    assert len(substrate.made) == 1 + ability.FORKS
    assert record.total_ns >= ability.FORKS * delays.fork + delays.dispatch + delays.run
    assert record.create_ns == ability.FORKS * delays.fork
    assert substrate.living == 0


@pytest.mark.parametrize("workload", [ability.reset(), ability.fork()], ids=lambda w: w.tier)
def test_where_the_ability_is_absent_the_tier_is_not_offered(workload):
    subject = Subject(label="synthetic", name="synthetic", substrate=SyntheticSubstrate())
    offer = asyncio.run(examine(subject, workload))
    assert not offer.offered
    assert f"{workload.tier} is not offered" in offer.reason


def test_a_campaign_measures_the_abilities_beside_the_tiers_and_names_those_not_offered(tmp_path):
    substrate = SyntheticSubstrate(resets=True)
    subjects = [Subject(label="synthetic", name="synthetic", substrate=substrate)]
    choices = Choices(trials=2, warmup=0)

    async def go():
        prepared = await campaign.prepare(tmp_path, subjects, [ability.reset(), ability.fork()], choices)
        await campaign.run(tmp_path, prepared, choices, clock=substrate.clock)

    asyncio.run(go())
    records, _ = read_records(tmp_path)
    assert [(record.tier, record.steps, record.ok) for record in records] == [("reset", 0, True)] * 2
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["subjects"]["synthetic"]["tiers"]["fork"]["offered"] is False
