"""Driver `microvm`.

microvm               clones of a template that is booted once per image and kept
microvm?stock=4       so many processes wait for the next sandbox (2 unless asked otherwise)
microvm?accel=tcg     without asking whether KVM is usable · microvm?accel=kvm   that, or nothing
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.core.errors import Misuse
from dutyfree.core.spec import Storage
from dutyfree.image.store import Store
from dutyfree.substrates.microvm.substrate import MicrovmSubstrate
from dutyfree.substrates.qemu.offer import accel_of, look, machine_capabilities
from dutyfree.substrates.qemu.plan import Accel
from dutyfree.substrates.qemu.workshop import open_workshop

STORAGES: frozenset[Storage] = frozenset({"memory"})
_MOST = 64


class MicrovmDriver(Driver):
    """The entry point's object."""

    name = "microvm"
    summary = "clones of a booted virtual machine, memory copy-on-write, on QEMU"

    def declared(self) -> list[Capabilities]:
        """Emulated: with KVM the isolation is stronger."""
        return [offered("tcg")]

    def probe(self) -> Availability:
        """Look for QEMU and a kernel; judge KVM."""
        return look(offered("tcg"))

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Judge, prepare, sweep. The first sandbox of an image boots its template."""
        accel = accel_of(options, ("accel", "stock"), self.name)
        stock = options.get("stock", "2")
        if not stock.isdecimal() or int(stock) > _MOST:
            raise Misuse(f"must be a number from 0 to {_MOST}, not {stock!r}", field="stock", driver=self.name)
        workshop = await asyncio.to_thread(open_workshop, self.name, Store.default(), accel)
        return MicrovmSubstrate(workshop, offered(workshop.accel), int(stock))


def offered(accel: Accel) -> Capabilities:
    """Capabilities of a clone."""
    plain = machine_capabilities("agent", accel, STORAGES)
    notes = {
        **plain.notes,
        "storages": "a clone's disk is its template's, so writes stay in memory",
        "fork": "processes go on in the copies, beside a new agent; what was streaming goes on unheard",
        "reset": "destroy and create: a clone is as cheap as a reset would be",
    }
    return replace(plain, snapshot=True, fork=True, notes=notes)


driver = MicrovmDriver()
