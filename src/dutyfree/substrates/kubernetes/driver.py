"""Driver `kubernetes`: which kubeconfig, which namespace, and how the pods are used.

kubernetes                              our agent in each pod, on one exec stream
kubernetes?dispatch=api                 an exec call per action, as people do
kubernetes?ready=wait                   wait for the pod's Ready before the first exec, instead of trying until it works
kubernetes?profile=hardened             few capabilities, read-only root, no new privileges
kubernetes?kubeconfig=/path&context=c&namespace=n · repository=registry.example/team/ · runtime_class=gvisor
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp  # noqa: F401 - its absence is this extra's; the heavy imports come with the first use

from dutyfree.core.checkout import make
from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.core.errors import DutyfreeError, Unavailable
from dutyfree.core.spec import Network
from dutyfree.substrates.engine.options import check_options, dispatch_of, profile_of

if TYPE_CHECKING:
    from dutyfree.substrates.kubernetes.client import Client

Look = Callable[["Client"], Awaitable[Availability]]
"""Asks an open cluster what it offers."""

OUR_KUBECONFIG = "/run/dutyfree/cluster/kubeconfig"
"""Where `make cluster` puts its own."""

IN_CLUSTER = "/var/run/secrets/kubernetes.io/serviceaccount/token"
ENABLE = make("cluster-build && cluster", "export KUBECONFIG=…")
_OPTIONS = ("dispatch", "profile", "ready", "kubeconfig", "context", "namespace", "repository", "runtime_class")
_PROBE_S = 10.0


class KubernetesDriver(Driver):
    """The entry point's object."""

    name = "kubernetes"
    summary = "pods of a cluster, by its API"

    def declared(self) -> list[Capabilities]:
        """In both dispatch modes, on a cluster whose namespace has no network."""
        from dutyfree.substrates.kubernetes.substrate import Settings, pod_capabilities  # noqa: PLC0415 - as above

        networks: frozenset[Network] = frozenset({"none"})
        return [pod_capabilities(networks, Settings()), pod_capabilities(networks, Settings(dispatch="api"))]

    def probe(self) -> Availability:
        """Ask the cluster of the kubeconfig what it is; nothing is made in it."""
        return ask_cluster(_look)

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Claim a place in the namespace; remove what dead owners left in it."""
        check_options(options, _OPTIONS, self.name)
        from dutyfree.substrates.kubernetes.client import open_client  # noqa: PLC0415 - a second of imports
        from dutyfree.substrates.kubernetes.substrate import Settings, open_cluster  # noqa: PLC0415

        settings = Settings(
            dispatch=dispatch_of(options),
            profile=profile_of(options),
            wait=options.get("ready") == "wait",
            repository=options.get("repository", ""),
            runtime_class=options.get("runtime_class"),
        )
        path = kubeconfig(options.get("kubeconfig"))
        client = await open_client(path, options.get("context"), options.get("namespace"))
        return await open_cluster(client, settings)


driver = KubernetesDriver()


def kubeconfig(given: str | None) -> str | None:
    """The one asked for, $KUBECONFIG, ours, the user's; None: we are a pod. `Unavailable` if there is none at all."""
    asked = given or os.environ.get("KUBECONFIG")
    if asked:
        if not os.path.exists(asked.partition(":")[0]):
            raise Unavailable(f"there is no kubeconfig at {asked}", enable=ENABLE, driver=driver.name)
        return asked
    places = (OUR_KUBECONFIG, str(Path("~/.kube/config").expanduser()))
    for path in places:
        if os.path.exists(path):
            return path
    if os.path.exists(IN_CLUSTER):
        return None
    raise Unavailable(f"there is no kubeconfig at {' or '.join(places)}", enable=ENABLE, driver=driver.name)


def ask_cluster(look: Look) -> Availability:
    """Ask the cluster of the kubeconfig for its version, or for the reason why it does not answer."""
    found: list[Availability] = []
    # A loop of its own: whoever asks may be running one.
    thread = threading.Thread(target=lambda: found.append(asyncio.run(_ask(look))), name="dutyfree-probe")
    thread.start()
    thread.join()
    return found[0]


async def _ask(look: Look) -> Availability:
    try:
        path = kubeconfig(None)
        from dutyfree.substrates.kubernetes.client import open_client  # noqa: PLC0415 - as above

        client = await open_client(path, None, None)
        try:
            async with asyncio.timeout(_PROBE_S):
                return await look(client)
        finally:
            await client.close()
    except TimeoutError:
        return Availability(available=False, reason="the cluster does not answer in time", enable=ENABLE)
    except DutyfreeError as error:
        return Availability(
            available=False,
            reason=getattr(error, "reason", error.message),
            enable=getattr(error, "enable", None) or ENABLE,
        )


async def _look(client: Client) -> Availability:
    from dutyfree.substrates.kubernetes.substrate import Settings, look, pod_capabilities  # noqa: PLC0415 - as above

    version, networks = await look(client)
    return Availability(
        available=True,
        reason=f"cluster at {client.server}, namespace {client.namespace}",
        version=version,
        capabilities=pod_capabilities(networks, Settings()),
    )
