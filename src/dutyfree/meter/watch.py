"""The whole machine beside a cohort: processor time of everybody, and the memory that live sandboxes take.

A thread looks twice a second and does nothing else, so it costs the clocks it stands beside some tens of microseconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dutyfree.meter.settle import busy_ticks

PERIOD_S = 0.5


@dataclass(kw_only=True, slots=True)
class Watched:
    """Numbers of one cohort, for each of its trials."""

    cpu_ns: int | None = None
    memory_bytes: int | None = None


UNWATCHED = Watched()


def available_bytes() -> int | None:
    """Memory that a new process could have, as the kernel estimates it; None where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


@contextmanager
def watch(trials: int, *, quiet_share: float, memory: bool) -> Iterator[Watched]:
    """Watch the machine for the length of the block; the numbers are complete after it."""
    seen = Watched()
    before, least, done = available_bytes() if memory else None, [available_bytes() or 0], threading.Event()

    def look() -> None:
        while not done.wait(PERIOD_S):
            least[0] = min(least[0], available_bytes() or least[0])

    thread = threading.Thread(target=look, name="memory", daemon=True)
    ticks, began = busy_ticks(), time.monotonic()
    if before is not None:
        thread.start()
    try:
        yield seen
    finally:
        done.set()
        if before is not None:
            thread.join()
            seen.memory_bytes = max(0, before - least[0]) // trials
        hertz, took_s = os.sysconf("SC_CLK_TCK"), time.monotonic() - began
        noise_s = quiet_share * took_s * (os.cpu_count() or 1)
        seen.cpu_ns = max(0, int(((busy_ticks() - ticks) / hertz - noise_s) * 1e9)) // trials
