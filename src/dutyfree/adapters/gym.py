"""Gymnasium: an environment whose actions are commands and whose observations are what they say, alone or many at once.

    env = Environment(image="bench", reward=lambda box: float(box.run("pytest -q").ok))

An episode is one sandbox, fresh from its start state. A failure of the machinery is raised: it is no transition, and no
reward of 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from dutyfree import blocking
from dutyfree.adapters.rollout import Rollout, begin, exit_status, lease, start_of
from dutyfree.core.outcome import Outcome

Reward = Callable[[blocking.Sandbox], float]
"""Asked once per episode, at its end, with the sandbox as the agent left it. To judge by hidden tests: `dutyfree.verify`."""

SUBMIT = "submit"
"""The action that ends an episode."""


class Text(gymnasium.Space[str]):
    """Any text: `gymnasium.spaces.Text` must name every character."""

    def __init__(self, sample: str = "", seed: int | None = None) -> None:
        self._sample = sample
        super().__init__(shape=None, dtype=str, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """The same text always: a random one is no command."""
        del mask, probability
        return self._sample

    def contains(self, x: Any) -> bool:
        """Whether it is text."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """Text is no array."""
        return False


class _Rules:
    """What an episode's steps say and when it ends; the same for one and for many."""

    def __init__(self, reward: Reward | None, turns: int, timeout_s: float, observation_bytes: int) -> None:
        self.reward = reward
        self.turns = turns
        self.options: dict[str, Any] = {
            "timeout_s": timeout_s,
            "merge_stderr": True,
            "output_limit_bytes": observation_bytes,
        }

    def transition(self, outcome: Outcome, turn: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        info = {"ending": outcome.ending, "exit_status": exit_status(outcome)}
        return outcome.text(), 0.0, False, turn >= self.turns, info

    def last(self, box: blocking.Sandbox) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", self.reward(box) if self.reward is not None else 0.0, True, False, {"ending": SUBMIT}


class Environment(gymnasium.Env[str, str]):
    """One episode at a time. Settings are those of `start_of`; `reset(options={"start": …})` changes the start state."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own

    def __init__(
        self,
        *,
        reward: Reward | None = None,
        turns: int = 100,
        timeout_s: float = 60,
        observation_bytes: int = 16 << 10,
        **settings: Any,
    ) -> None:
        self.action_space = Text("true")
        self.observation_space = Text()
        self.box: blocking.Sandbox | None = None
        self._rules = _Rules(reward, turns, timeout_s, observation_bytes)
        self._settings = settings
        self._turn = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode in a fresh sandbox."""
        super().reset(seed=seed)
        self.close()
        self.box = lease(start_of(**{**self._settings, **(options or {})}))
        self._turn = 0
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run a command, or end the episode by `SUBMIT`."""
        if self.box is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        if action == SUBMIT:
            return self._rules.last(self.box)
        self._turn += 1
        return self._rules.transition(self.box.run(action, **self._rules.options), self._turn)

    def close(self) -> None:
        """Free the sandbox. Calling it twice is fine."""
        if self.box is not None:
            self.box.destroy()
            self.box = None


class Environments:
    """Many episodes side by side, each step of all of them at once. An episode that has ended waits for the next `reset`."""

    def __init__(self, number: int, *, reward: Reward | None = None, turns: int = 100, timeout_s: float = 60,
                 observation_bytes: int = 16 << 10, **settings: Any) -> None:  # fmt: skip
        self.number = number
        self._rules = _Rules(reward, turns, timeout_s, observation_bytes)
        self._start = start_of(**settings)
        self._rollouts: list[Rollout] = []
        self._turns: list[int] = []
        self._runner = asyncio.Runner()

    def reset(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Begin all episodes, in fresh sandboxes."""
        self._runner.run(self._end())
        self._runner.run(self._begin())
        return [""] * self.number, [{} for _ in range(self.number)]

    def step(
        self, actions: Sequence[str]
    ) -> tuple[list[str], list[float], list[bool], list[bool], list[dict[str, Any]]]:
        """Run one command in each."""
        if len(actions) != len(self._rollouts):
            raise gymnasium.error.ResetNeeded(f"{len(self._rollouts)} episodes run, and {len(actions)} actions came")
        transitions = self._runner.run(self._step(actions))
        observations, rewards, ended, cut, infos = (list(column) for column in zip(*transitions, strict=True))
        return observations, rewards, ended, cut, infos

    def close(self) -> None:
        """Free all sandboxes."""
        self._runner.run(self._end())
        self._runner.close()

    async def _begin(self) -> None:
        self._turns = [0] * self.number
        async with asyncio.TaskGroup() as group:
            for _ in range(self.number):
                group.create_task(self._one())

    async def _one(self) -> None:
        self._rollouts.append(await begin(self._start))

    async def _end(self) -> None:
        rollouts, self._rollouts = self._rollouts, []
        await asyncio.gather(*(rollout.end() for rollout in rollouts))

    async def _step(self, actions: Sequence[str]) -> list[tuple[str, float, bool, bool, dict[str, Any]]]:
        return list(await asyncio.gather(*(self._act(at, action) for at, action in enumerate(actions))))

    async def _act(self, at: int, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        rollout = self._rollouts[at]
        if action == SUBMIT:
            return await asyncio.to_thread(self._rules.last, rollout.box)
        self._turns[at] += 1
        return self._rules.transition(await rollout.run(action, **self._rules.options), self._turns[at])
