"""A training run as a trial: it learns, it is the same everywhere, and its time is the slowest rollout's."""

import asyncio
from dataclasses import replace

from synthetic import Delays, Faults, SyntheticSubstrate

from dutyfree.core.spec import Spec
from dutyfree.meter.action import Action, Check
from dutyfree.meter.plan import Cell, Trial
from dutyfree.meter.record import COMPONENTS
from dutyfree.meter.source import Source
from dutyfree.meter.subject import Subject
from dutyfree.meter.training import Policy, train
from dutyfree.meter.trial import Setting, run_trial
from dutyfree.meter.workload import Training
from dutyfree.meter.workloads import tier0

RIGHT = (Action(kind="test", command="true"),)
WRONG = (Action(kind="test", command="false", check=Check(exit_code=1)),)


def run(substrate, group=1):
    training = Training(attempts=(RIGHT, WRONG), rewards=(1.0, 0.0), iterations=3, group=group)
    workload = replace(tier0.workload(), training=training)
    source = Source(
        subject=Subject(label="s", name="s", substrate=substrate), workload=workload, spec=Spec(), profile="controlled"
    )
    setting = Setting(host="h", seed=1, deadline_s=30, warm=True, clock=substrate.clock)
    trial = Trial(cell=Cell(substrate="s", tier="RL", steps=3), block=0)
    return asyncio.run(run_trial(source, trial, setting, 0, train))


def test_a_policy_learns_what_earns_a_reward():
    policy = Policy(4)
    for _ in range(20):
        policy.learn([0, 1, 2, 3], [1.0, 0.0, 0.0, 0.0])
    assert policy.probabilities()[0] > 0.9


def test_a_group_that_earns_alike_teaches_nothing():
    policy = Policy(3)
    policy.learn([0, 1], [1.0, 1.0])
    assert policy.logits == [0.0, 0.0, 0.0]


def test_its_time_is_the_sum_of_its_rollouts():
    delays = Delays()
    record = run(SyntheticSubstrate())
    assert record.ok, record.failure_message
    one = delays.queue + delays.create + delays.ready + delays.run + delays.dispatch + delays.destroy
    assert record.total_ns == 3 * one
    assert sum(getattr(record, f"{name}_ns") for name in COMPONENTS) == record.total_ns


def test_every_rollout_has_a_sandbox_of_its_own_and_none_is_left():
    substrate = SyntheticSubstrate()
    assert run(substrate, group=4).ok
    assert len(substrate.made) == 12
    assert substrate.living == 0


def test_a_lost_sandbox_is_the_reason_of_the_failure():
    substrate = SyntheticSubstrate(faults=Faults(lose_at=2))
    record = run(substrate, group=2)
    assert record.failure_kind == "SandboxLost"
    assert substrate.living == 0
