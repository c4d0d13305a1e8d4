"""How the registry finds `boxlite`.

boxlite                  the library's exec call per action, as people do
boxlite?home=/path       another directory for its state; by default one of ours, since only one process may use it
"""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.core.contract import Capabilities
from dutyfree.substrates.api.sandbox import API_NOTES
from dutyfree.substrates.embedded.driver import EmbeddedDriver
from dutyfree.substrates.embedded.size import LIMIT_NOTE
from dutyfree.substrates.embedded.vendor import Library
from dutyfree.substrates.hosted.credential import Credential

CAPABILITIES = Capabilities(
    isolation="vm",
    dispatch="api",
    limits=frozenset({"cpus", "memory_bytes"}),
    storages=frozenset({"memory", "disk"}),
    process_tree=False,
    notes={
        **API_NOTES,
        "stream": "the library hands on output as text, which an agent's stream is not",
        "dispatch": "output goes through the sandbox's own base64, since the library hands it on as text; the command's own "
        "time is what bash saw of it",
        "limits": LIMIT_NOTE,
        "networks": "a machine has no network but loopback; the machine's own one is another kernel's",
        "storages": "writes go to a disk image of the machine's own, on the host's disk, whichever is asked for",
        "snapshot": "the library's snapshots belong to one machine and end with it",
    },
)


async def _open(options: Mapping[str, str], _: Mapping[str, Credential]) -> Library:
    from dutyfree.substrates.boxlite.library import open_home  # noqa: PLC0415 - the one import of the SDK

    return await open_home(options.get("home"))


driver = EmbeddedDriver(
    name="boxlite",
    summary="microVMs of the BoxLite library, on KVM",
    module="boxlite",
    package="boxlite",
    capabilities=CAPABILITIES,
    open=_open,
    options=("home",),
)
