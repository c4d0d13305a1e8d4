"""Provide each trial's sandbox, and take it back afterwards: the difference between the two profiles.

controlled: created for the trial, destroyed after it. optimised: whatever the substrate offers to avoid that; forked
from one that is already set up where it can fork, else reset and used again where it can reset, else as controlled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dutyfree.core.contract import Sandbox
from dutyfree.core.spec import Spec
from dutyfree.meter.action import Action
from dutyfree.meter.record import Profile, Start
from dutyfree.meter.subject import Subject
from dutyfree.meter.workload import Workload, set_up


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A sandbox for one trial."""

    box: Sandbox
    start: Start
    directory: str | None
    """Where actions run, if set-up is already done."""
    prepared: bool


@dataclass(kw_only=True, slots=True)
class Source:
    """Sandboxes of one subject for one workload."""

    subject: Subject
    workload: Workload
    spec: Spec
    profile: Profile
    server: tuple[str, int] | None = None
    """Where the git server listens."""
    _template: Sandbox | None = None
    _directory: str | None = None
    _idle: list[Sandbox] = field(default_factory=list)
    _actions: dict[int, tuple[Action, ...]] = field(default_factory=dict)

    async def prepare(self, steps: int) -> None:
        """Work out a trajectory before any clock runs: it reads files for longer than some rollouts take."""
        if steps not in self._actions:
            self._actions[steps] = await asyncio.to_thread(self.workload.actions, steps)

    def actions(self, steps: int) -> tuple[Action, ...]:
        """The trajectory of that many steps, once it was prepared."""
        return self._actions[steps]

    async def open(self) -> None:
        """Prepare what all trials share: the sandbox they are forked from."""
        if self._forks and self._template is None:
            box = await self.subject.substrate.create(self.spec)
            self._template = box
            self._directory = await set_up(box, self.workload, self.server, judged=not self.subject.hollow)

    async def take(self) -> Taken:
        """A sandbox, by the quickest way the profile allows."""
        if self._template is not None:
            (child,) = await self._template.fork(1)
            return Taken(box=await child, start="fork", directory=self._directory, prepared=True)
        if self._idle:
            return Taken(box=self._idle.pop(), start="reset", directory=None, prepared=False)
        box = await self.subject.substrate.create(self.spec)
        return Taken(box=box, start="fresh", directory=None, prepared=False)

    @property
    def resets(self) -> bool:
        """Sandboxes are reset after a trial, and kept."""
        return self.profile == "optimised" and not self._forks and self.subject.substrate.capabilities.reset

    def keep(self, box: Sandbox) -> None:
        """Give back a sandbox that has been reset."""
        self._idle.append(box)

    async def close(self) -> None:
        """Destroy what was kept."""
        boxes = [*self._idle, *([self._template] if self._template else [])]
        self._idle.clear()
        self._template = None
        for box in boxes:
            await box.destroy()

    @property
    def _forks(self) -> bool:
        return self.profile == "optimised" and self.subject.substrate.capabilities.fork
