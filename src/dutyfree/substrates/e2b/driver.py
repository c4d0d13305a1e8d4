"""Driver `e2b`. Image `host` stands for the template; any other name is a template's own.

e2b                                     the vendor's `base` template
e2b?template=my-template                another one · ttl=300: seconds that a machine outlives a killed client
"""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.core.contract import Capabilities
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.driver import HostedDriver
from dutyfree.substrates.hosted.substrate import HOSTED_NOTES
from dutyfree.substrates.hosted.vendor import Vendor

KEY = "E2B_API_KEY"

CAPABILITIES = Capabilities(
    isolation="vm",
    dispatch="api",
    networks=frozenset({"none", "host"}),
    storages=frozenset({"memory", "disk"}),
    medium="disk",
    users=True,
    notes={
        **HOSTED_NOTES,
        "isolation": "the vendor's own microVM, one for each sandbox",
        "limits": "processors and memory are the template's; the rest is not bounded",
        "networks": "none: nothing goes out, but the vendor's address still leads in to ports that listen",
        "storages": "the vendor's disk, whichever is asked for",
    },
)


async def _open(options: Mapping[str, str], credentials: Mapping[str, Credential]) -> Vendor:
    from dutyfree.substrates.e2b.vendor import E2bVendor  # noqa: PLC0415 - the SDK comes with the first use

    return E2bVendor(options.get("template", "base"), credentials[KEY])


driver = HostedDriver(
    name="e2b",
    summary="microVMs of e2b, by its SDK",
    module="e2b",
    package="e2b",
    variables=(KEY,),
    capabilities=CAPABILITIES,
    open=_open,
    options=("template",),
)
