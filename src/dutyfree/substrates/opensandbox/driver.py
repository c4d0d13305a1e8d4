"""Driver `opensandbox`. Images are the server's own; `make opensandbox` makes those of our store known to it.

opensandbox                 the server of OPEN_SANDBOX_DOMAIN, with OPEN_SANDBOX_API_KEY, or that of `make opensandbox`
opensandbox?proxy=yes       commands go through the server, where the sandboxes themselves cannot be reached
opensandbox?ttl=300         seconds that a sandbox outlives a client that was killed
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dutyfree.core.contract import Availability, Capabilities
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.driver import HostedDriver
from dutyfree.substrates.hosted.substrate import HOSTED_NOTES
from dutyfree.substrates.hosted.vendor import Vendor
from dutyfree.substrates.opensandbox.address import ENABLE, NAME, Address

CAPABILITIES = Capabilities(
    isolation="namespace",
    dispatch="api",
    limits=frozenset({"cpus", "memory_bytes"}),
    networks=frozenset({"host"}),
    storages=frozenset({"memory", "disk"}),
    medium="disk",
    users=True,
    notes={
        **HOSTED_NOTES,
        "isolation": "a container of the server's engine; a server may be set up with a stronger runtime, and does not tell",
        "limits": "pids has one bound for all sandboxes, in the server's configuration; the rest is not bounded",
        "networks": "the network that the server's configuration gives its sandboxes",
        "storages": "the engine's own writable layer on disk, whichever is asked for",
    },
)


class OpenSandboxDriver(HostedDriver):
    """It costs nothing to ask one's own server."""

    __slots__ = ()

    def probe(self) -> Availability:
        """The SDK is there, and the server answers."""
        try:
            self._check()
            address = Address.find()
        except Unavailable as error:
            return self._absent(error.reason, error.enable)
        why = address.failure()
        if why is not None:
            return self._absent(why, ENABLE)
        return Availability(
            available=True,
            reason=f"server at {address.domain}",
            version=self._version(),
            capabilities=self.capabilities,
        )

    def _absent(self, reason: str, enable: str | None) -> Availability:
        return Availability(
            available=False, reason=reason, enable=enable, version=self._version(), capabilities=self.capabilities
        )


async def _open(options: Mapping[str, str], credentials: Mapping[str, Credential]) -> Vendor:
    del credentials  # a server may do without a key
    proxy = options.get("proxy", "no")
    if proxy not in ("yes", "no"):
        raise Misuse(f"must be one of yes, no, not {proxy!r}", field="proxy", driver=NAME)
    address = Address.find()
    why = await asyncio.to_thread(address.failure)
    if why is not None:
        raise Unavailable(why, enable=ENABLE, driver=NAME)
    from dutyfree.substrates.opensandbox.vendor import OpenSandboxVendor  # noqa: PLC0415 - the SDK comes with the first use

    return OpenSandboxVendor(address, proxy=proxy == "yes")


driver = OpenSandboxDriver(
    name=NAME,
    summary="containers of an OpenSandbox server, by its SDK",
    module="opensandbox",
    package="opensandbox",
    variables=(),
    capabilities=CAPABILITIES,
    open=_open,
    options=("proxy",),
    costs=False,
)
