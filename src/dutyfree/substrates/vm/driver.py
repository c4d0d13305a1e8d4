"""Driver `vm`.

vm                    our agent on a virtio port · vm?dispatch=api   one ssh connection per action
vm?accel=tcg          without asking whether KVM is usable · vm?accel=kvm   that, or nothing
vm?kernel=…           words for the kernel's command line
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.core.errors import Unavailable
from dutyfree.core.spec import Storage
from dutyfree.image.store import Store
from dutyfree.substrates.engine.options import dispatch_of
from dutyfree.substrates.qemu.offer import accel_of, look, machine_capabilities
from dutyfree.substrates.qemu.workshop import ENABLE, open_workshop
from dutyfree.substrates.vm.remote import SshVmSubstrate
from dutyfree.substrates.vm.ssh import obstacle
from dutyfree.substrates.vm.substrate import VmSubstrate

STORAGES: frozenset[Storage] = frozenset({"memory", "disk"})


class VmDriver(Driver):
    """The entry point's object."""

    name = "vm"
    summary = "a virtual machine per sandbox, booted cold, on QEMU"

    def declared(self) -> list[Capabilities]:
        """In both dispatch modes, emulated: with KVM the isolation is stronger."""
        return [machine_capabilities("agent", "tcg", STORAGES), machine_capabilities("api", "tcg", STORAGES)]

    def probe(self) -> Availability:
        """Look for QEMU and a kernel; judge KVM."""
        return look(machine_capabilities("agent", "tcg", STORAGES))

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Judge, prepare, sweep."""
        accel = accel_of(options, ("dispatch", "accel", "kernel"), self.name)
        store, dispatch = Store.default(), dispatch_of(options)
        if dispatch == "api" and (why := obstacle(store.root)) is not None:
            raise Unavailable(why, enable=ENABLE, driver=self.name)
        workshop = await asyncio.to_thread(open_workshop, self.name, store, accel)
        offered = machine_capabilities(dispatch, workshop.accel, STORAGES)
        kind = VmSubstrate if dispatch == "agent" else SshVmSubstrate
        # In a thread for the keys, which a program makes.
        return await asyncio.to_thread(lambda: kind(workshop, offered, line=options.get("kernel", "")))


driver = VmDriver()
