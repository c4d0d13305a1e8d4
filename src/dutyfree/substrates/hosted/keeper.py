"""`Keeper`: the vendor's clocks, set again while their owner lives.

Killed, it sets none, and the vendor ends what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dutyfree.core.errors import DutyfreeError, SandboxLost
from dutyfree.substrates.hosted.vendor import Machine

TTL_S = 300.0
"""What a vendor is told: a machine whose owner was killed goes on for this long at most."""

ROUNDS = 3
"""How often the clock is set within that time: two calls may fail."""


@dataclass(kw_only=True, slots=True)
class _Kept:
    machine: Machine
    lose: Callable[[str], None]
    until_s: float | None
    """The end of its lifetime, by the loop's clock."""


class Keeper:
    """Of all machines of one substrate."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._kept: dict[str, _Kept] = {}
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def first_s(self, lifetime_s: float | None) -> float:
        """Lifetime to give to a new vendor sandbox."""
        return self._ttl_s if lifetime_s is None else min(self._ttl_s, lifetime_s)

    def keep(self, name: str, machine: Machine, lifetime_s: float | None, lose: Callable[[str], None]) -> None:
        """Set its clock from now on; `lose` is told if the vendor says that it is gone."""
        until_s = None if lifetime_s is None else self._loop.time() + lifetime_s
        self._kept[name] = _Kept(machine=machine, lose=lose, until_s=until_s)
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def drop(self, name: str) -> None:
        """It is on its way to its end."""
        self._kept.pop(name, None)

    async def close(self) -> None:
        """Set no clock any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / ROUNDS)
            async with asyncio.TaskGroup() as group:
                for kept in list(self._kept.values()):
                    group.create_task(self._extend(kept))

    async def _extend(self, kept: _Kept) -> None:
        left_s = self._ttl_s if kept.until_s is None else min(self._ttl_s, kept.until_s - self._loop.time())
        if left_s <= 0:
            return
        try:
            await kept.machine.extend(left_s)
        except SandboxLost as error:
            kept.lose(error.message)
        except DutyfreeError:
            return  # the next round comes before the end
