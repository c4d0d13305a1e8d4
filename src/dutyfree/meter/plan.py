"""Which trial runs when: randomised blocks, fixed by the seed.

Every block holds each cell once (as a cohort: the trials of a cell that run at the same time), in an
order drawn for that block alone. A cell with fewer cohorts than others has them spread evenly over all
blocks. So drift and neighbours hit all substrates alike, and a resumed run does exactly what is left.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Cell:
    """One configuration that gets a row in the results."""

    substrate: str
    tier: str
    steps: int
    """0: a cold start."""
    parallel: int = 1

    def __str__(self) -> str:
        return f"{self.substrate}/{self.tier}/{self.steps}/p{self.parallel}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One repetition of a cell."""

    cell: Cell
    block: int
    """Repetition of the cell, counting from 0; warm-up has blocks of its own, below 0."""
    member: int = 0
    """Which of the cohort."""

    @property
    def id(self) -> str:
        """Unique in a run, the same in every run of the plan."""
        return f"{self.cell}/{self.block}.{self.member}"

    @property
    def warmup(self) -> bool:
        """True if the trial is run and recorded, but not counted."""
        return self.block < 0


Cohort = tuple[Trial, ...]


def plan(trials: Sequence[tuple[Cell, int]], *, seed: int, warmup: int = 0) -> Iterator[Cohort]:
    """All cohorts in order, for cells with the number of trials each shall have. Warm-up comes first.

    A cell with `parallel` = N runs N trials at a time, so its number of trials is rounded up to a multiple of N.
    """
    for block in range(-warmup, 0):
        first = _warmup_cells(cell for cell, _ in trials)
        yield from _block([Trial(cell=cell, block=block) for cell in first], block, seed)
    cohorts = {cell: -(-count // cell.parallel) for cell, count in trials}
    blocks = max(cohorts.values(), default=0)
    placed: list[list[Trial]] = [[] for _ in range(blocks)]
    for cell, number in cohorts.items():
        for repetition in range(number):
            placed[(2 * repetition + 1) * blocks // (2 * number)].append(Trial(cell=cell, block=repetition))
    for block, firsts in enumerate(placed):
        yield from _block(firsts, block, seed)


def remaining(cohorts: Iterable[Cohort], done: set[str]) -> Iterator[Cohort]:
    """The same, without the trials that are done."""
    for cohort in cohorts:
        if left := tuple(trial for trial in cohort if trial.id not in done):
            yield left


def _block(firsts: Iterable[Trial], block: int, seed: int) -> list[Cohort]:
    """The cohorts of these trials, in the block's own order."""
    order = sorted(firsts, key=lambda trial: trial.cell)
    random.Random(f"{seed}/{block}").shuffle(order)  # noqa: S311 - an order, not a secret
    return [tuple(replace(one, member=m) for m in range(one.cell.parallel)) for one in order]


def _warmup_cells(cells: Iterable[Cell]) -> list[Cell]:
    """The shortest trajectory of each substrate and tier touches everything the longer ones do."""
    shortest: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        key = (cell.substrate, cell.tier)
        lengths = (cell.steps == 0, cell.steps)
        if key not in shortest or lengths < (shortest[key].steps == 0, shortest[key].steps):
            shortest[key] = Cell(substrate=cell.substrate, tier=cell.tier, steps=cell.steps)
    return list(shortest.values())
