"""Probes 119 to 122, 133, 134, 139 to 141, 143: kernel memory for a sandbox that nobody is charged for.

Each is judged by what the whole machine has left. Others use the machine too, so two readings are taken: by how much
`MemAvailable` falls, and by how much that grows which the kernel cannot give back. The smaller one
counts, of up to three tries. Every attempt stops by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.contract import Substrate
from dutyfree.probe.payload.hoard import kernel_bytes
from dutyfree.probe.scene import Stage, stage, unenforced
from dutyfree.probe.verdict import Probe, Verdict, broke, held

LIMIT_BYTES = 128 << 20
MOST_BYTES = 256 << 20
"""What the machine may lose to a sandbox whose memory limit is half as much."""
_STOP_BYTES = 768 << 20
_SECONDS = 4.0
_TRIES = 3
_LOOK_S = 0.05
_FREED_S = 3.0
_NEAR_BYTES = 32 << 20

WAYS = {
    119: ("netlink-replies", ["netlink replies"]),
    120: ("error-queues", ["time stamps", "time stamps by message", "errors"]),
    121: ("network-buffers", ["TCP", "UDP", "corked", "TCP not accepted"]),
    122: ("memory-policies", ["policies"]),
    133: ("file-locks", ["locks"]),
    134: ("access-lists", ["access lists"]),
    139: ("poll-tables", ["poll"]),
    140: ("directory-caches", ["directories"]),
    141: ("socket-options", ["memberships", "keys"]),
    143: ("charged-objects", ["rights", "watchers", "messages", "mappings", "rules"]),
}
"""By number: the name, and the attempts, each in a sandbox of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Memory:
    available: int
    kernel: int

    @classmethod
    def now(cls) -> _Memory:
        text = Path("/proc/meminfo").read_text()
        available = next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemAvailable"))
        return cls(available=available, kernel=kernel_bytes(text))


class Watch:
    """By how much the machine's memory fell between entering and leaving, as far as it came back after."""

    async def __aenter__(self) -> Watch:
        self._before = self._worst_available = self._worst_kernel = _Memory.now()
        self._task = asyncio.ensure_future(self._look())
        return self

    async def _look(self) -> None:
        while True:
            now = _Memory.now()
            self._worst_available = min(self._worst_available, now, key=lambda memory: memory.available)
            self._worst_kernel = max(self._worst_kernel, now, key=lambda memory: memory.kernel)
            await asyncio.sleep(_LOOK_S)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def fell(self, charged: int) -> int:
        """Bytes; `charged`: what may be used besides, by all that was watched."""
        after, end = _Memory.now(), time.monotonic() + _FREED_S
        # Sockets and namespaces are freed some time after their last user has gone.
        while after.kernel > self._before.kernel + _NEAR_BYTES and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)
            after = _Memory.now()
        available = min(self._before.available, after.available) - self._worst_available.available
        kernel = self._worst_kernel.kernel - max(self._before.kernel, after.kernel)
        return min(available, kernel + charged)


async def hoarding(box: Stage, ways: list[str], stop_bytes: int, *, processes: int = 4) -> str:
    """Let it take what it can get; what it says about that, or how it ended."""
    tried = await box.attempt(
        "hoard", what=ways, most_bytes=stop_bytes, seconds=_SECONDS, processes=processes, timeout_s=60
    )
    said = tried.said
    return f"{said['steps']} steps, {said['why'] or 'all of them'}" if said else f"ended by {tried.outcome.ending}"


async def _fall(substrate: Substrate, way: str) -> tuple[int, str]:
    async with Watch() as watch, stage(substrate, memory_bytes=LIMIT_BYTES) as box:
        said = await hoarding(box, [way], _STOP_BYTES)
    return await watch.fell(LIMIT_BYTES), said


def _spends(ways: list[str]) -> Callable[[Substrate], Awaitable[Verdict]]:
    async def run(substrate: Substrate) -> Verdict:
        if missing := unenforced(substrate, "memory_bytes"):
            return broke(missing)
        facts = []
        for way in ways:
            for _ in range(_TRIES):
                fell, said = await _fall(substrate, way)
                if fell <= MOST_BYTES:
                    break
            else:
                return broke(f"{way}: the machine had {fell >> 20} MiB less, the limit is {LIMIT_BYTES >> 20} MiB")
            facts.append(f"{way} ({max(0, fell) >> 20} MiB): {said}")
        return held("; ".join(facts))

    return run


PROBES = tuple(
    Probe(id=number, name=name, group="exhaustion", run=_spends(ways)) for number, (name, ways) in WAYS.items()
)
