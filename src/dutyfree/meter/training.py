"""A whole training run as a trial: the same reinforcement-learning loop on every substrate, by the
clock on the wall.

A softmax policy over a few candidate attempts is trained by REINFORCE with the group's mean as
baseline. Each iteration samples a group of attempts, carries each out in a sandbox of its own, all
at once, waits for the slowest, and updates. The random numbers are seeded by the block, so every
substrate makes the same rollouts and earns the same rewards.

Components are those of the slowest rollout of each iteration: the critical path. What is left is
orchestration.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

from dutyfree.meter.action import Action
from dutyfree.meter.plan import Trial
from dutyfree.meter.source import Source
from dutyfree.meter.trial import Setting, Tape, rollout
from dutyfree.meter.workload import CheckFailed

LEARNING_RATE = 1.5


class Policy:
    """Logits over attempts."""

    def __init__(self, attempts: int) -> None:
        self.logits = [0.0] * attempts

    def probabilities(self) -> list[float]:
        """Softmax of the logits."""
        top = max(self.logits)
        weights = [math.exp(logit - top) for logit in self.logits]
        return [weight / sum(weights) for weight in weights]

    def learn(self, chosen: Sequence[int], rewards: Sequence[float]) -> None:
        """One step of REINFORCE, with the group's mean reward as baseline."""
        baseline = sum(rewards) / len(rewards)
        odds = self.probabilities()
        for choice, reward in zip(chosen, rewards, strict=True):
            for attempt, probability in enumerate(odds):
                gradient = (1.0 if attempt == choice else 0.0) - probability
                self.logits[attempt] += LEARNING_RATE * (reward - baseline) * gradient / len(chosen)


async def train(source: Source, trial: Trial, setting: Setting, tape: Tape) -> None:
    """Train once. Each attempt verifies the reward it earns, so a wrong one fails the trial."""
    training = source.workload.training
    if training is None:
        raise CheckFailed("the workload has nothing to train on")
    rng = random.Random(f"{setting.seed}/{trial.block}")  # noqa: S311
    policy = Policy(len(training.attempts))
    tape.begin_ns = setting.clock()
    for _ in range(training.iterations):
        chosen = rng.choices(range(len(training.attempts)), policy.probabilities(), k=training.group)
        tapes = [Tape(begin_ns=setting.clock()) for _ in chosen]
        # In a task of its own: Python 3.11's task groups leave the task they ran in marked as cancelled when one fails,
        # and that mark is how a trial recognises Ctrl-C.
        await asyncio.create_task(_together(source, setting, [training.attempts[choice] for choice in chosen], tapes))
        _absorb(tape, max(tapes, key=lambda own: own.end_ns - own.begin_ns))
        policy.learn(chosen, [training.rewards[choice] for choice in chosen])
    tape.end_ns = setting.clock()


async def _together(
    source: Source, setting: Setting, attempts: Sequence[tuple[Action, ...]], tapes: Sequence[Tape]
) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for actions, tape in zip(attempts, tapes, strict=True):
                group.create_task(rollout(source, actions, setting, tape))
    except ExceptionGroup as several:
        # The first failure ended the others; it is the reason.
        raise several.exceptions[0] from several


def _absorb(tape: Tape, slowest: Tape) -> None:
    for name in ("create_ns", "ready_ns", "setup_ns", "reset_ns", "destroy_ns", "teardown_ns"):
        setattr(tape, name, getattr(tape, name) + getattr(slowest, name))
    if tape.first_result_ns is None:
        tape.first_result_ns = slowest.first_result_ns
    tape.actions += slowest.actions
    tape.runs += slowest.runs
    tape.exit_codes += slowest.exit_codes
    tape.cpu_ns += slowest.cpu_ns
    tape.start = slowest.start
