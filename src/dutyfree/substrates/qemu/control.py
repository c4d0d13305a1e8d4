"""`Control`: the host's end of the port on which a machine's first process takes orders (native/machine)."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping

from dutyfree.core.errors import DriverError, SandboxLost
from dutyfree.core.spec import Limits
from dutyfree.substrates.scratch import scratch_bytes, scratch_files

_LONGEST_LINE = 4096
_SEED_BYTES = 64
_PERIOD_US = 100_000

KEEPERS = 2
"""Processes of ours that count among the sandbox's: the agent and its parent."""


class Control:
    """Owns the socket; orders are answered one by one."""

    def __init__(self, end: socket.socket, driver: str) -> None:
        end.setblocking(False)
        self._end = end
        self._driver = driver
        self._pending = b""

    async def ready(self) -> None:
        """Wait until the machine has booted."""
        line = await self._line()
        if line != "ready":
            raise DriverError(f"the machine says {line!r} instead of ready", driver=self._driver, step="ready")

    async def order(self, *lines: str) -> None:
        """Give orders, all at once, and wait until each was done."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._end, "".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            raise SandboxLost(f"the machine ended: {error.strerror}", driver=self._driver) from error
        for line in lines:
            answer = await self._line()
            if answer != "ok":
                number = answer.removeprefix("failed ")
                why = os.strerror(int(number)) if number.isdecimal() else answer
                raise DriverError(
                    f"the machine cannot {line.split(maxsplit=1)[0]}: {why}", driver=self._driver, step="ready"
                )

    def close(self) -> None:
        """The machine ends by this."""
        self._end.close()

    async def _line(self) -> str:
        while b"\n" not in self._pending:
            try:
                data = await asyncio.get_running_loop().sock_recv(self._end, 4096)
            except OSError:
                data = b""
            self._pending += data
            if not data or len(self._pending) > _LONGEST_LINE:
                raise SandboxLost("the machine ended", driver=self._driver)
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode(errors="replace")


def fresh(name: str) -> list[str]:
    """Orders that make a machine different from every copy of it: randomness, time, name."""
    return [f"seed {os.urandom(_SEED_BYTES).hex()}", clock(), f"name {name}"]


def clock() -> str:
    """The order to take over our time of day."""
    return f"clock {time.time_ns()}"


def bounds(limits: Limits, *, in_memory: bool) -> list[str]:
    """Orders for the limits that hold inside the machine."""
    orders: list[str] = []
    if limits.cpus is not None:
        orders.append(f"limit cpu.max {max(1000, int(limits.cpus * _PERIOD_US))} {_PERIOD_US}")
    if limits.memory_bytes is not None:
        orders.append(f"limit memory.max {limits.memory_bytes}")
    if limits.pids is not None:
        orders.append(f"limit pids.max {limits.pids + KEEPERS}")
    sizes: Mapping[str, int | None] = {"size": limits.disk_bytes, "nr_inodes": limits.files}
    if limits.memory_bytes is not None:  # the kernel goes by the machine's memory, which is more
        sizes = {
            "size": limits.disk_bytes or scratch_bytes(limits.memory_bytes),
            "nr_inodes": limits.files or scratch_files(limits.memory_bytes),
        }
    wanted = [f"{name}={value}" for name, value in sizes.items() if value is not None]
    if wanted and in_memory:
        orders.append(f"upper {','.join(wanted)}")
    return orders
