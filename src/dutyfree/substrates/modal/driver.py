"""Driver `modal`. Image `host` stands for `image`; any other name is one of a registry, or `im-…`.

modal                                   our agent in each sandbox, on the streams of one exec call
modal?dispatch=api                      an exec call per action, as people do
modal?image=python:3.12&app=dutyfree&environment=main&region=us-east
modal?ttl=300                           seconds that a sandbox outlives a killed client
"""

from __future__ import annotations

from collections.abc import Mapping

from dutyfree.core.contract import Capabilities
from dutyfree.substrates.api.sandbox import API_NOTES
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.driver import HostedDriver
from dutyfree.substrates.hosted.vendor import Vendor

_NOTES = {
    "isolation": "a second kernel in user space (gVisor), which the vendor runs",
    "limits": "processes, disk and files are the vendor's own",
    "networks": "host: the internet, by the vendor's network",
    "egress": "the vendor's allow-lists have no ports",
    "storages": "writes go to the vendor's disk, whichever is asked for",
    "snapshot": "not offered yet: the vendor keeps snapshots, and bills them, beyond the end of a client",
}

AGENT = Capabilities(
    isolation="kernel",
    dispatch="agent",
    limits=frozenset({"cpus", "memory_bytes"}),
    networks=frozenset({"none", "host"}),
    storages=frozenset({"memory", "disk"}),
    medium="disk",
    users=True,
    stream=True,
    terminal=True,
    shell=True,
    forward=True,
    process_tree=True,
    notes=_NOTES,
)

API = Capabilities(
    isolation="kernel",
    dispatch="api",
    limits=AGENT.limits,
    networks=AGENT.networks,
    storages=AGENT.storages,
    medium=AGENT.medium,
    notes={**_NOTES, **API_NOTES, "users": "an exec call has no user; use dispatch=agent"},
)


async def _open(options: Mapping[str, str], credentials: Mapping[str, Credential]) -> Vendor:
    from dutyfree.substrates.modal.account import open_account  # noqa: PLC0415 - a second of imports

    return await open_account(options, credentials)


driver = HostedDriver(
    name="modal",
    summary="containers at Modal, by the vendor's own SDK",
    module="modal",
    package="modal",
    variables=("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"),
    capabilities=AGENT,
    others=(API,),
    open=_open,
    options=("app", "environment", "image", "region"),
)
