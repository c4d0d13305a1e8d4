"""`EmbeddedDriver`: the entry point's object of a library, which is imported when somebody connects and KVM was found usable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from dutyfree.core.contract import Availability, Capabilities, Substrate
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates.embedded.substrate import EmbeddedSubstrate
from dutyfree.substrates.embedded.vendor import Library
from dutyfree.substrates.engine.options import check_options
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.driver import HostedDriver
from dutyfree.substrates.hosted.substrate import swept
from dutyfree.substrates.qemu.kvm import DEVICE, Verdict, judge


@dataclass(frozen=True, kw_only=True)
class EmbeddedDriver(HostedDriver):
    """One library. Its `open` makes a `Library`."""

    variables: Sequence[str] = ()
    costs: bool = False
    more: Sequence[Capabilities] = ()
    """Of the other dispatch modes."""
    look: Callable[[], Verdict] = judge
    """At KVM."""

    def declared(self) -> list[Capabilities]:
        """Where KVM is usable."""
        return [self.capabilities, *self.more]

    def probe(self) -> Availability:
        """KVM first: without it the library is of no use, installed or not."""
        found = super().probe()
        return replace(found, reason="KVM is usable, and the library is installed") if found.available else found

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Nothing is started; what dead owners left is ended."""
        check_options(options, ("dispatch", *self.options), self.name)
        wanted = options.get("dispatch", self.capabilities.dispatch)
        offered = next((one for one in self.declared() if one.dispatch == wanted), None)
        if offered is None:
            what = f"must be {self.capabilities.dispatch}, not {wanted!r}: {self.capabilities.notes['stream']}"
            raise Misuse(what, field="dispatch", driver=self.name)
        library = cast("Library", await self.open(options, self._check()))
        return await swept(EmbeddedSubstrate(self.name, library, offered))

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
