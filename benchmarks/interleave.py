"""One run of many contenders: rounds in seeded random order, warm-up apart, raw samples written as they happen.

A contender times itself and answers nanoseconds, so that what it prepares and clears away is not counted. A sample that
fails is recorded with its reason and stays in the denominator; nothing is tried again. The collector of garbage stays
on: callers pay for it too.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

now_ns = time.perf_counter_ns


class SampleFailed(RuntimeError):
    """The thing that was timed did not do what it should."""


class Missing(RuntimeError):
    """A contender cannot take part here; `enable` is the command that would let it."""

    def __init__(self, what: str, enable: str) -> None:
        super().__init__(f"{what}; to enable: {enable}")
        self.what = what
        self.enable = enable


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One thing to time."""

    name: str
    """As in the records."""
    group: str
    """Which table it stands in."""
    label: str
    """What is timed, for people."""
    measure: Callable[[], int]
    """One sample, in nanoseconds."""
    share: float = 1.0
    """How many of the rounds it takes part in, spread evenly: slow rivals need not be asked in all."""
    settle_s: float = 0.0
    """Pause after each sample, so that what it leaves to others to clear away is not charged to the next."""


@dataclass(kw_only=True, slots=True)
class Samples:
    """What one contender showed, in the order it was seen."""

    times_ns: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Records:
    """The raw samples of a run: one JSON line each, flushed at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file: IO[str] = path.open("w", encoding="utf-8")

    def add(self, **fields: object) -> None:
        """Write one record."""
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()


def interleave(
    contenders: Sequence[Contender],
    *,
    phase: str,
    rounds: int,
    warm_up: int,
    seed: int,
    records: Records,
    progress: Callable[[str], None],
) -> dict[str, Samples]:
    """Run all contenders `rounds` times in random order; gives their samples by name."""
    order = random.Random(f"{seed}/{phase}")
    seen = {contender.name: Samples() for contender in contenders}
    for number in range(-warm_up, rounds):
        due = [c for c in contenders if number < 0 or _is_due(number, rounds, c.share)]
        order.shuffle(due)
        for place, contender in enumerate(due):
            time_ns, failure = _sample(contender)
            records.add(
                phase=phase, round=number, warm_up=number < 0, place=place, contender=contender.name, ns=time_ns,
                failure=failure,
            )  # fmt: skip
            if number >= 0 and time_ns is not None:
                seen[contender.name].times_ns.append(time_ns)
            if failure is not None and number >= 0:
                seen[contender.name].failures.append(failure)
            time.sleep(contender.settle_s)
        if (number + 1) % max(1, rounds // 10) == 0 and number >= 0:
            progress(f"{phase}: round {number + 1} of {rounds}")
    return seen


def _is_due(number: int, rounds: int, share: float) -> bool:
    count = max(1, min(rounds, round(rounds * share)))
    return (number + 1) * count // rounds > number * count // rounds


def _sample(contender: Contender) -> tuple[int | None, str | None]:
    try:
        return contender.measure(), None
    except Exception as error:  # noqa: BLE001 - a trial runner: whatever failed is written down
        return None, f"{type(error).__name__}: {error}"
