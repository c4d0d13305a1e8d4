"""A campaign: subjects and workloads in, a directory of records out. What `dutyfree measure` does, without printing.

Looks at what each subject offers, lays the plan, writes the manifest, runs what is not yet in the directory. Started
again with the same choices it goes on where it stopped; started with more trials it adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.core.spec import Limits, Spec, Storage
from dutyfree.core.timeline import now_ns
from dutyfree.meter import manifest as manifests
from dutyfree.meter.manifest import Protocol
from dutyfree.meter.plan import Cell, Cohort, plan, remaining
from dutyfree.meter.record import Profile
from dutyfree.meter.runner import Bench, Progress, run_plan
from dutyfree.meter.settle import Settler, busy_share
from dutyfree.meter.store import Problem, RecordWriter, read_manifest, read_records, write_manifest
from dutyfree.meter.subject import IMAGES, Offer, Subject, examine
from dutyfree.meter.trial import Setting
from dutyfree.meter.workload import Workload

QUICK: Mapping[str, Mapping[int, int]] = {
    "T0": {0: 20, 10: 10, 50: 8, 150: 8},
    "T1": {0: 8, 10: 8, 50: 8, 150: 8},
    "T2": {0: 8, 10: 8, 50: 2, 150: 8},
    "RL": {},
    "reset": {0: 20},
    "fork": {0: 10},
    "T2@repository": {0: 6},
    "T2@dependencies": {0: 6},
}
"""Trials by tier and steps in `--quick`: about two minutes for what a bare machine has; enough for a tax (`FEW` in
`stability`) at the ends of each tier."""
UNASKED: Mapping[str, Mapping[int, int]] = {"T0": {0: 8, 10: 8}}
"""The same for other substrates that nobody named: some seconds each."""
SLOW_S = 0.15
"""From the request to the first answer: who takes longer is slow, and has few trials in `--quick` unless named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """The user's decisions."""

    steps: Sequence[int] = (0, 10, 50, 150)
    """Lengths of trajectories; 0 is the cold start."""
    trials: int | None = None
    """Trials of every cell; None: 100, or as `QUICK` says."""
    trials_for: Mapping[str, int] = field(default_factory=dict)
    """Trials by a substrate's label, for those whose trials take too long to have as many as the others."""
    quick: bool = False
    seed: int = 1
    parallel: Sequence[int] = (1,)
    warmup: int = 1
    deadline_s: float = 600.0
    profile: Profile = "controlled"
    images: Sequence[str] = IMAGES
    limits: Limits | None = None
    storage: Storage = "memory"
    """Where sandboxes keep what is written, where the substrate offers it."""
    command: Sequence[str] = ()
    unasked: frozenset[str] = frozenset()
    """Labels of the substrates that the user did not name."""
    settle_s: float = 0.0
    """Longest wait before each cohort until the machine is quiet."""
    unisolated_trace: bool = False
    """Replay recorded commands also where nothing isolates them from the machine."""

    def count(self, label: str, tier: str, steps: int, *, slow: bool = False) -> int:
        """Trials of one cell; 0: it is left out."""
        given = self.trials_for.get(label, self.trials)
        if self.quick and slow and label in self.unasked:
            few = UNASKED.get(tier, {}).get(steps, 0)
            return given or few if few else 0
        if given is not None:
            return given
        return QUICK.get(tier, {}).get(steps, 3) if self.quick else 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A campaign that is ready to run."""

    bench: Bench
    offers: Mapping[tuple[str, str], Offer]
    manifest: Mapping[str, Any]
    todo: Sequence[Cohort]
    done: int
    """Trials that the directory already holds."""
    problems: Sequence[Problem]


async def prepare(
    directory: Path,
    subjects: Sequence[Subject],
    workloads: Sequence[Workload],
    choices: Choices,
    server: tuple[str, int] | None = None,
) -> Prepared:
    """Examine, plan, and write (or check) the manifest. Raises `Misuse` if the directory holds something else."""
    by_label = {subject.label: subject for subject in subjects}
    if strangers := sorted(choices.trials_for.keys() - by_label.keys()):
        raise Misuse(f"{', '.join(strangers)} is not among the substrates that are measured", field="--trials-for")
    by_tier = {workload.tier: workload for workload in workloads}
    offers = {}
    for subject in subjects:
        slow = False
        for workload in workloads:
            offer = await _examine(subject, workload, choices, server, slow=slow)
            slow = slow or (offer.first_answer_s or 0.0) > SLOW_S
            offers[subject.label, workload.tier] = offer
    slow_ones = frozenset(label for (label, _), offer in offers.items() if (offer.first_answer_s or 0.0) > SLOW_S)
    cells = _cells(by_label, by_tier, offers, choices, slow_ones)
    protocol = Protocol(
        seed=choices.seed,
        cells=cells,
        warmup=choices.warmup,
        deadline_s=choices.deadline_s,
        profile=choices.profile,
        command=choices.command,
    )
    manifest = manifests.build(protocol, by_label, by_tier, offers)
    old = read_manifest(directory)
    if old is not None:
        manifests.check_same(old, manifest, str(directory))
        manifest["created_at"] = old["created_at"]
    records, problems = read_records(directory)
    write_manifest(directory, manifest)
    done = {record.id for record in records}
    bench = Bench(
        subjects=by_label,
        workloads=by_tier,
        specs=_specs(offers),
        profile=choices.profile,
        server=server,
        unreached=frozenset(key for key, offer in offers.items() if offer.route == "upload"),
    )
    todo = list(remaining(plan(cells, seed=choices.seed, warmup=choices.warmup), done))
    return Prepared(bench=bench, offers=offers, manifest=manifest, todo=todo, done=len(done), problems=problems)


async def run(
    directory: Path,
    prepared: Prepared,
    choices: Choices,
    *,
    progress: Progress | None = None,
    clock: Callable[[], int] = now_ns,
) -> None:
    """Measure what is left to do."""
    looks = choices.settle_s > 0 or any(work.think_s for work in prepared.bench.workloads.values())
    setting = Setting(
        host=prepared.manifest["host"]["id"],
        seed=choices.seed,
        deadline_s=choices.deadline_s,
        warm=choices.warmup > 0,
        clock=clock,
        settler=Settler(limit_s=choices.settle_s, quiet_share=await busy_share(0.5) if looks else 0.0),
    )
    with RecordWriter(directory) as writer:
        await run_plan(prepared.bench, prepared.todo, setting, writer, first_order=prepared.done, progress=progress)


async def _examine(
    subject: Subject, workload: Workload, choices: Choices, server: tuple[str, int] | None, *, slow: bool
) -> Offer:
    counts = [
        choices.count(subject.label, workload.tier, steps, slow=slow) for steps in workload.steps or choices.steps
    ]
    if not any(counts):
        return Offer(offered=False, reason=f"left out of --quick; name it to measure it: -s '{subject.label}'")
    unisolated = subject.substrate.capabilities.isolation == "none" and not subject.hollow
    if workload.recorded and unisolated and not choices.unisolated_trace:
        return Offer(
            offered=False,
            reason="recorded commands are not run where nothing isolates them; --trace-unisolated allows it",
        )
    images = choices.images
    if workload.surroundings is not None and workload.surroundings.image is not None:
        images = (workload.surroundings.image,)
    return await examine(
        subject, workload, images=images, limits=choices.limits, storage=choices.storage, server=server
    )


def _cells(
    subjects: Mapping[str, Subject],
    workloads: Mapping[str, Workload],
    offers: Mapping[tuple[str, str], Offer],
    choices: Choices,
    slow: frozenset[str],
) -> list[tuple[Cell, int]]:
    return [
        (Cell(substrate=label, tier=tier, steps=steps, parallel=parallel), count)
        for label in subjects
        for tier, workload in workloads.items()
        if offers[label, tier].offered
        for steps in (workload.steps or choices.steps)
        if (count := choices.count(label, tier, steps, slow=label in slow))
        for parallel in choices.parallel
    ]


def _specs(offers: Mapping[tuple[str, str], Offer]) -> dict[tuple[str, str], Spec]:
    return {key: offer.spec for key, offer in offers.items() if offer.spec is not None}
