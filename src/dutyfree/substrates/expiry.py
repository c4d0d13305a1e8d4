"""`Expiry`: the host's clocks of one sandbox, its lifetime and its idleness, for drivers whose substrate has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dutyfree.core.spec import Spec

Lose = Callable[[str], None]
"""Begins to end the sandbox, for a reason given to whoever asks later."""


class Expiry:
    """Armed at once; `cancel` when the sandbox ends."""

    def __init__(self, spec: Spec, lose: Lose, idle_since: Callable[[], float | None] | None = None) -> None:
        """`idle_since` tells when the sandbox was last used, by the loop's clock; None: it is busy."""
        self._loop = asyncio.get_running_loop()
        self._lose = lose
        self._idle_since = idle_since
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if spec.lifetime_s is not None:
            self._timers["lifetime"] = self._loop.call_later(spec.lifetime_s, lose, "its lifetime was over")
        if spec.idle_s is not None and idle_since is not None:
            self._watch(spec.idle_s)

    def cancel(self) -> None:
        """Stop the clocks."""
        for timer in self._timers.values():
            timer.cancel()

    def _watch(self, idle_s: float) -> None:
        """Look again when the time could be up, counted from the last use."""
        since = self._idle_since() if self._idle_since else None
        left_s = idle_s if since is None else since + idle_s - self._loop.time()
        if left_s <= 0:
            self._lose(f"nothing was asked of it for {idle_s:g} s")
            return
        self._timers["idle"] = self._loop.call_later(left_s, self._watch, idle_s)
