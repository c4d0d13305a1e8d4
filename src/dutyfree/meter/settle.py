"""Quiet before a trial: what the one before left to others to clear away must not be charged to the next.

A pod that is gone for its client keeps a kubelet, a runtime and a file system busy for seconds. The wait is bounded and
recorded. A machine that others use is never quiet: it is compared with itself as it was before the run.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

WINDOW_S = 0.04
MARGIN = 0.1
"""Share of all processors above the machine's own noise that still counts as quiet."""
PATIENCE = 3
"""Waits in a row that end at the limit."""


def busy_ticks() -> int:
    """Ticks that all processors together have worked since boot, for anybody; 0 where the kernel does not tell."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return 0
    user, nice, system, _idle, _waiting, interrupt, soft = (int(one) for one in fields[:7])
    return user + nice + system + interrupt + soft


async def busy_share(window_s: float = WINDOW_S) -> float:
    """Share of all processors' time that was worked during a window."""
    began, before = time.monotonic(), busy_ticks()
    await asyncio.sleep(window_s)
    took = time.monotonic() - began
    whole = took * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
    return (busy_ticks() - before) / whole


@dataclass(kw_only=True, slots=True)
class Settler:
    """Waits before cohorts until the machine is as quiet as it was before the run."""

    limit_s: float = 0.0
    """Longest wait; 0: none."""
    quiet_share: float = 0.0
    """Work of the machine before the run, as a share of its processors."""
    _in_vain: int = 0

    async def wait(self) -> int:
        """Wait; nanoseconds that it took. Noise that no wait ends is the machine's own from then on."""
        if self.limit_s <= 0:
            return 0
        began = time.monotonic_ns()
        while (share := await busy_share()) > self.quiet_share + MARGIN:
            if time.monotonic_ns() - began > self.limit_s * 1e9:
                self._in_vain += 1
                if self._in_vain >= PATIENCE:
                    self.quiet_share = share
                break
        else:
            self._in_vain = 0
        return time.monotonic_ns() - began
