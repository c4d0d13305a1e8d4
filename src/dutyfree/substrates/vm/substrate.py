"""The substrate whose sandboxes are virtual machines, each booted from its kernel up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from dutyfree.core.contract import Capabilities, Sandbox
from dutyfree.core.pending import completed, finish
from dutyfree.core.spec import Spec
from dutyfree.driver.backend import ImageDefaults
from dutyfree.image.disk import make_writable
from dutyfree.image.resolve import Image
from dutyfree.substrates.boot import Birth, boot_agent
from dutyfree.substrates.owning import OwningSubstrate
from dutyfree.substrates.qemu.control import bounds, fresh
from dutyfree.substrates.qemu.machine import Boot, Machine, booted, start_machine
from dutyfree.substrates.qemu.offer import check_writes, cpus_for, memory_for
from dutyfree.substrates.qemu.plan import Hardware, agent_port
from dutyfree.substrates.qemu.workshop import Workshop

MEMORY_BYTES = 1 << 30
DISK_BYTES = 4 << 30
"""Of the disk that takes the writes, where they go to disk; reserved in the store while the machine lives."""


class VmSubstrate(OwningSubstrate):
    """Machines of one workshop, reached by our agent on a port of their own."""

    def __init__(self, workshop: Workshop, capabilities: Capabilities, *, line: str = "") -> None:
        super().__init__(workshop.driver)
        self._store = workshop.store
        self.version = workshop.version
        self.capabilities = capabilities
        self._workshop = workshop
        self._line = line
        """Added to the kernel's command line."""

    async def close(self) -> None:
        """Destroy what is left."""
        await super().close()
        self._workshop.close()

    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        check_writes(spec, self.name)
        image = await self._image(spec.image)
        disk = await self._workshop.disk(image)
        async with self._writes(spec) as writes:
            machine = self._start(spec, [disk, *writes], image)
        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=machine.end,
            failure=machine.words, defaults=ImageDefaults(env=image.env, cwd=image.cwd, user=image.user), start_ns=start_ns,
        )  # fmt: skip
        try:
            await booted(machine)
            return await self._reach(machine, birth, image)
        except BaseException:
            await finish(machine.end())
            raise

    async def _reach(self, machine: Machine, birth: Birth, image: Image) -> Sandbox:
        del image
        await machine.control.order(*self._orders(birth), f"agent {agent_port(1)}")
        return await boot_agent(birth, machine.stream)

    def _orders(self, birth: Birth) -> list[str]:
        in_memory = birth.spec.storage == "memory"
        return [*fresh(birth.id), "loopback", *bounds(birth.spec.limits, in_memory=in_memory)]

    def _start(self, spec: Spec, disks: list[Path], image: Image, *, ethernet: bool = False) -> Machine:
        hardware = Hardware(
            accel=self._workshop.accel,
            memory_bytes=memory_for(spec, MEMORY_BYTES),
            cpus=cpus_for(spec),
            disks=len(disks),
            ethernet=ethernet,
        )
        return start_machine(hardware, driver=self.name, disks=disks, boot=self._boot(image))

    def _boot(self, image: Image) -> Boot:
        del image
        boot = self._workshop.boot
        return replace(boot, line=f"{boot.line} {self._line}".strip())

    @asynccontextmanager
    async def _writes(self, spec: Spec) -> AsyncIterator[list[Path]]:
        """A disk for the writes, if they go to one. It has no name any more once the machine holds it."""
        if spec.storage == "memory":
            yield []
            return
        path = self._workshop.scratch("writes")
        try:
            await completed(asyncio.to_thread(make_writable, path, DISK_BYTES))
            yield [path]
        finally:
            path.unlink(missing_ok=True)
