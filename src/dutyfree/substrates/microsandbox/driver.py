"""How the registry finds `microsandbox`. The library keeps its state where it always does: MSB_HOME, or ~/.microsandbox.

microsandbox                    the library's exec call per action, as people do
microsandbox?dispatch=agent     our agent in each machine, on one exec stream
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dutyfree.core.contract import Capabilities
from dutyfree.substrates.api.sandbox import API_NOTES
from dutyfree.substrates.embedded.driver import EmbeddedDriver
from dutyfree.substrates.embedded.size import LIMIT_NOTE
from dutyfree.substrates.embedded.vendor import Library
from dutyfree.substrates.hosted.credential import Credential

_NOTES = {
    "limits": LIMIT_NOTE,
    "networks": "a machine has no network but loopback; the machine's own one is another kernel's",
    "storages": "writes go to a disk image of the machine's own, on the host's disk, whichever is asked for",
    "snapshot": "the library's snapshots are of stopped machines, or of memory and disk as one; not mapped",
}

AGENT = Capabilities(
    isolation="vm",
    dispatch="agent",
    limits=frozenset({"cpus", "memory_bytes"}),
    storages=frozenset({"memory", "disk"}),
    stream=True,
    terminal=True,
    shell=True,
    forward=True,
    notes=_NOTES,
)
API = replace(
    AGENT,
    dispatch="api",
    stream=False,
    terminal=False,
    shell=False,
    forward=False,
    process_tree=False,
    notes={
        **_NOTES,
        **API_NOTES,
        "dispatch": "the command's own time is from the library's word that it began to its word that it ended",
    },
)


async def _open(options: Mapping[str, str], _: Mapping[str, Credential]) -> Library:
    from dutyfree.substrates.microsandbox.library import Microsandbox  # noqa: PLC0415 - the one import of the SDK

    return Microsandbox(agent=options.get("dispatch") == "agent")


driver = EmbeddedDriver(
    name="microsandbox",
    summary="microVMs of the microsandbox library, on KVM",
    module="microsandbox",
    package="microsandbox",
    capabilities=API,
    others=(AGENT,),
    open=_open,
)
