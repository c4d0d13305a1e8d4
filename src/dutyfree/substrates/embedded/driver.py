"""`EmbeddedDriver`: the entry point's object of a library, which is imported when somebody connects and KVM was found usable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

from dutyfree.core.contract import Availability, Capabilities
from dutyfree.core.errors import Unavailable
from dutyfree.substrates.embedded.substrate import EmbeddedSubstrate
from dutyfree.substrates.embedded.vendor import Library
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.driver import HostedDriver
from dutyfree.substrates.qemu.kvm import DEVICE, Verdict, judge


@dataclass(frozen=True, kw_only=True)
class EmbeddedDriver(HostedDriver):
    """One library. Its `open` makes a `Library`."""

    variables: Sequence[str] = ()
    costs: bool = False
    common: ClassVar[Sequence[str]] = ("dispatch",)
    """No `ttl`: its machines end with this process."""
    look: Callable[[], Verdict] = judge
    """At KVM."""

    def probe(self) -> Availability:
        """KVM first: without it the library is of no use, installed or not."""
        found = super().probe()
        return replace(found, reason="KVM is usable, and the library is installed") if found.available else found

    async def _substrate(self, options: Mapping[str, str], capabilities: Capabilities) -> EmbeddedSubstrate:
        library = cast("Library", await self.open(options, self._check()))
        return EmbeddedSubstrate(self.name, library, capabilities)

    def _check(self) -> dict[str, Credential]:
        found = self.look()
        if not found.usable:
            raise Unavailable(
                f"it needs KVM: {found.reason}",
                enable=f"pip install 'dutyfree[{self.name}]', on a machine where guests of {DEVICE} run natively",
                driver=self.name,
                stage="connect",
            )
        return super()._check()
