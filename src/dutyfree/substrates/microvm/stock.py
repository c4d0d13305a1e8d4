"""`Stock`: processes that wait for the state of one template, so that a clone does not wait for a process."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dutyfree.core.errors import DutyfreeError
from dutyfree.core.pending import finish
from dutyfree.substrates.microvm.template import Template
from dutyfree.substrates.qemu.machine import Machine, speaking


class Stock:
    """Owns the processes until they are taken."""

    def __init__(self, template: Template, driver: str, size: int) -> None:
        self.template = template
        self._driver = driver
        self._size = size
        self._waiting: list[Machine] = []
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of clones that are ready."""
        return len(self._waiting)

    async def take(self) -> Machine:
        """A clone that runs: of the stock, or started now."""
        while self._waiting:
            machine = self._waiting.pop()
            if machine.alive():
                break
            await machine.end()
        else:
            machine = self.template.start(self._driver)
        try:
            if not machine.monitor.greeted:
                await speaking(machine)
            await self.template.wake(machine)
        except BaseException:
            await finish(machine.end())
            raise
        self._refill()
        return machine

    async def close(self) -> None:
        """End what waits."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            with suppress(asyncio.CancelledError):
                await self._filling
        for machine in self._waiting:
            await machine.end()
        self._waiting.clear()

    async def filled(self) -> None:
        """Wait until the stock is as large as it shall be."""
        self._refill()
        if self._filling is not None:
            await asyncio.shield(self._filling)

    def _refill(self) -> None:
        if self._closed or (self._filling is not None and not self._filling.done()):
            return
        if len(self._waiting) < self._size:
            self._filling = asyncio.ensure_future(self._fill())

    async def _fill(self) -> None:
        """Start clones ahead. One that cannot be started now is started, and fails, when it is wanted."""
        with suppress(DutyfreeError):
            while len(self._waiting) < self._size:
                machine = self.template.start(self._driver)
                try:
                    await speaking(machine)
                except BaseException:
                    await finish(machine.end())
                    raise
                self._waiting.append(machine)
