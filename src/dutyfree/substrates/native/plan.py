"""`Plan`: what is the same for all sandboxes of one kind, and the layers in memory that it may stand on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dutyfree.core.spec import Spec
from dutyfree.image.resolve import Image
from dutyfree.substrates.native.spawner import Order


@dataclass(slots=True, eq=False)
class MemoryLayer:
    """A layer that the spawner keeps in memory: what one sandbox had written when it was saved."""

    number: int
    users: int = 0
    """Snapshots that name it and sandboxes that stand on it; at none it is given up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An image with what was saved on top of it, and the order that the spawner gets."""

    image: Image
    saved: tuple[MemoryLayer, ...]
    """Uppermost first, all above the image's own."""
    order: Order
    packet: bytes
    disk: bool
    made_ns: int

    def started_as(self, spec: Spec) -> Plan:
        """The same, with an image that remembers what the actions of a sandbox of `spec` start with."""
        return replace(self, image=replace(self.image, **spec.over(self.image)))

    def for_lifetime(self, lifetime_ns: int) -> bytes:
        """The same order for what is left of a lifetime."""
        if self.order.lifetime_ns == 0:
            return self.packet
        return replace(self.order, lifetime_ns=max(1, lifetime_ns)).pack(disk=self.disk)
