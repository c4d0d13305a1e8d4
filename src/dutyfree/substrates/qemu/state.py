"""A machine's state in a file and back, by QEMU's migration to a descriptor.

Memory that lies in a file of its own and is shared with it stays out of the state (`x-ignore-shared`): what is left are
the devices, some tens of kilobytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dutyfree.core.errors import DriverError
from dutyfree.driver.program import poll
from dutyfree.substrates.qemu.machine import Machine

PATIENCE_S = 120.0
_NAME = "state"
_BANDWIDTH = 1 << 40


async def save(machine: Machine, path: Path, *, memory: bool) -> None:
    """Write the state of a machine, which stands still afterwards. memory: its memory is in the state too."""
    await machine.monitor.call("stop")
    await _prepare(machine, ignore_shared=not memory)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        await machine.monitor.call("getfd", {"fdname": _NAME}, fd)
    finally:
        os.close(fd)
    await machine.monitor.call("migrate", {"uri": f"fd:{_NAME}"})
    await _completed(machine, "saved")


async def load(machine: Machine, path: Path, *, memory: bool) -> None:
    """Give a waiting machine its state; as `save` wrote it."""
    await _prepare(machine, ignore_shared=not memory)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        await machine.monitor.call("getfd", {"fdname": _NAME}, fd)
    finally:
        os.close(fd)
    await machine.monitor.call("migrate-incoming", {"uri": f"fd:{_NAME}"})
    await _completed(machine, "loaded")


async def _prepare(machine: Machine, *, ignore_shared: bool) -> None:
    capabilities = [{"capability": "x-ignore-shared", "state": ignore_shared}]
    await machine.monitor.call("migrate-set-capabilities", {"capabilities": capabilities})
    await machine.monitor.call("migrate-set-parameters", {"max-bandwidth": _BANDWIDTH})


async def _completed(machine: Machine, what: str) -> None:
    async def ask() -> str | None:
        answer: Any = await machine.monitor.call("query-migrate")
        status = str((answer or {}).get("status", ""))
        if status in ("failed", "cancelled"):
            why = (answer or {}).get("error-desc") or await machine.words() or status
            raise DriverError(f"the state was not {what}: {why}", driver=machine.driver, step="snapshot")
        return status if status == "completed" else None

    if await poll(ask, deadline_s=PATIENCE_S) is None:
        raise DriverError(f"the state was not {what} within {PATIENCE_S:g} s", driver=machine.driver, step="snapshot")
