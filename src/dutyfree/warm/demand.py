"""`Demand`: how many sandboxes in one state will be asked for before the next one could be ready. Knows no clock.

The rate is a count of arrivals that halves every `HALF_LIFE_S`. Rollouts come in groups, so the largest burst that
was seen is remembered as well, and forgotten at the same pace.
"""

from __future__ import annotations

import math

HALF_LIFE_S = 30.0
BURST_GAP_S = 0.25
"""Arrivals closer than this belong together: no substrate could make one ready in between."""
SAFETY = 2.0
"""Times the expected number of arrivals: half of all waits are longer than the mean."""
_NOBODY = 0.25


class Demand:
    """Of one state."""

    __slots__ = ("_burst", "_count", "_last_s", "_peak")

    def __init__(self) -> None:
        self._count = 0.0
        self._peak = 0.0
        self._burst = 0
        self._last_s = -math.inf

    def note(self, now_s: float) -> None:
        """Somebody asked."""
        fade = self._fade(now_s)
        self._burst = self._burst + 1 if now_s - self._last_s < BURST_GAP_S else 1
        self._count = self._count * fade + 1.0
        self._peak = max(self._peak * fade, float(self._burst))
        self._last_s = now_s

    def rate(self, now_s: float) -> float:
        """Arrivals per second."""
        return self._count * self._fade(now_s) * math.log(2) / HALF_LIFE_S

    def wanted(self, now_s: float, ready_s: float) -> int:
        """Number of sandboxes to keep ready if making one ready takes `ready_s`."""
        peak = self._peak * self._fade(now_s)
        if peak < _NOBODY:
            return 0
        return math.ceil(max(peak, self.rate(now_s) * ready_s * SAFETY))

    def _fade(self, now_s: float) -> float:
        return 0.0 if math.isinf(self._last_s) else 0.5 ** (max(0.0, now_s - self._last_s) / HALF_LIFE_S)
