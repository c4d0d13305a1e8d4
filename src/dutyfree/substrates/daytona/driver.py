"""Driver `daytona`. The credential is $DAYTONA_API_KEY; $DAYTONA_API_URL gives another address.

daytona                     the account's default region · daytona?target=eu: another · ttl=600: as for every vendor
Spec(image="host")          the account's default snapshot · "snapshot:NAME": one of its snapshots
Spec(image="debian:12")     anything else: an image as registries name it, which the vendor builds on when first asked
"""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.core.contract import Capabilities
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.driver import HostedDriver
from dutyfree.substrates.hosted.substrate import HOSTED_NOTES
from dutyfree.substrates.hosted.vendor import Vendor

KEY_VARIABLE = "DAYTONA_API_KEY"

CAPABILITIES = Capabilities(
    isolation="namespace",
    dispatch="api",
    limits=frozenset({"cpus", "memory_bytes", "disk_bytes"}),
    networks=frozenset({"none", "host"}),
    storages=frozenset({"memory", "disk"}),
    medium="disk",
    notes={
        **HOSTED_NOTES,
        "dispatch": f"{HOSTED_NOTES['dispatch']}; output comes with a command's end, so a limit that kills is seen too late",
        "isolation": "containers of the vendor, with a kernel that they share",
        "limits": "whole processors and GiB, and only with an image: a snapshot has limits of its own",
        "networks": "host: the vendor's network, with what it lets through",
        "storages": "writes go to the vendor's disk, whichever is asked for",
        "users": "the vendor runs everything as the sandbox's one user",
        "snapshot": "the vendor's own are made ahead and known by name: image snapshot:NAME",
    },
)


async def _open(options: Mapping[str, str], credentials: Mapping[str, Credential]) -> Vendor:
    from dutyfree.substrates.daytona.vendor import Daytona  # noqa: PLC0415 - the SDK comes with the first use

    return Daytona(credentials[KEY_VARIABLE], options.get("target"))


driver = HostedDriver(
    name="daytona",
    summary="sandboxes of Daytona, a hosted service",
    module="daytona",
    package="daytona",
    variables=(KEY_VARIABLE,),
    capabilities=CAPABILITIES,
    open=_open,
    options=("target",),
)
