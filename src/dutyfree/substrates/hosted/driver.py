"""`HostedDriver`: the entry point's object of a vendor. The SDK is imported when somebody connects, and not before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import ClassVar

from dutyfree.core.contract import Availability, Capabilities, Substrate
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates.engine.options import check_options
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.keeper import TTL_S
from dutyfree.substrates.hosted.substrate import HostedSubstrate, swept
from dutyfree.substrates.hosted.vendor import Vendor

_TTL_LEAST_S, _TTL_MOST_S = 15.0, 86_400.0

Open = Callable[[Mapping[str, str], Mapping[str, Credential]], Awaitable[Vendor]]
"""Imports the vendor's module and makes its `Vendor`, of the options and the credentials by variable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostedDriver:
    """One vendor."""

    name: str
    summary: str
    module: str
    """The SDK's, as it is imported."""
    package: str
    """The same, as it is installed."""
    variables: Sequence[str]
    """Of the environment: the credentials, all of which are needed."""
    capabilities: Capabilities
    open: Open
    others: Sequence[Capabilities] = ()
    """In another dispatch mode, where it is asked for."""
    options: Sequence[str] = ()
    """Of its own."""
    common: ClassVar[Sequence[str]] = ("dispatch", "ttl")
    """Every vendor's. `ttl`: how many seconds a machine outlives a client that was killed."""
    costs: bool = True
    """Each sandbox is paid for: it is measured when it is named, and not because it is there."""

    def declared(self) -> list[Capabilities]:
        """In each dispatch mode."""
        return [self.capabilities, *self.others]

    def probe(self) -> Availability:
        """The SDK and the credentials are there; whether the vendor takes them is seen when it is used."""
        try:
            self._check()
        except Unavailable as error:
            return Availability(
                available=False, reason=error.reason, enable=error.enable, version=self._version(), capabilities=self.capabilities
            )  # fmt: skip
        reason = f"by the account of {', '.join(self.variables)}; not asked"
        return Availability(available=True, reason=reason, version=self._version(), capabilities=self.capabilities)

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Nothing is started; what dead owners left is ended."""
        check_options(options, (*self.options, *self.common), self.name)
        capabilities = self._dispatched(options.get("dispatch", self.capabilities.dispatch))
        return await swept(await self._substrate(options, capabilities))

    async def _substrate(self, options: Mapping[str, str], capabilities: Capabilities) -> HostedSubstrate:
        ttl_s = self._ttl_s(options.get("ttl"))
        return HostedSubstrate(self.name, await self.open(options, self._check()), capabilities, ttl_s)

    def _dispatched(self, dispatch: str) -> Capabilities:
        offered: dict[str, Capabilities] = {one.dispatch: one for one in self.declared()}
        if dispatch not in offered:
            why = self.capabilities.notes.get("stream")
            what = f"must be {' or '.join(offered)}, not {dispatch!r}{': ' + why if why else ''}"
            raise Misuse(what, field="dispatch", driver=self.name)
        return offered[dispatch]

    def _check(self) -> dict[str, Credential]:
        if find_spec(self.module) is None:
            raise Unavailable(
                f"the {self.package} SDK is not installed",
                enable=f"pip install 'dutyfree[{self.name}]'",
                driver=self.name,
                step="import",
            )
        return {one: Credential.find(one, driver=self.name) for one in self.variables}

    def _version(self) -> str | None:
        try:
            return f"{self.package} {version(self.package)}"
        except PackageNotFoundError:
            return None

    def _ttl_s(self, given: str | None) -> float:
        if given is None:
            return TTL_S
        try:
            ttl_s = float(given)
        except ValueError:
            ttl_s = 0.0
        if not _TTL_LEAST_S <= ttl_s <= _TTL_MOST_S:
            what = f"must be seconds between {_TTL_LEAST_S:g} and {_TTL_MOST_S:g}, not {given!r}"
            raise Misuse(what, field="ttl", driver=self.name)
        return ttl_s
