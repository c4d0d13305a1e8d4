"""The substrate over one cluster: sandboxes are pods, in either dispatch mode."""

from __future__ import annotations

from dataclasses import dataclass

from dutyfree.core.contract import Capabilities, Dispatch, Sandbox
from dutyfree.core.errors import Unavailable
from dutyfree.core.pending import finish
from dutyfree.core.spec import Network, Spec
from dutyfree.driver.offer import Profile
from dutyfree.substrates.api.sandbox import API_NOTES
from dutyfree.substrates.boot import Birth
from dutyfree.substrates.kubernetes.base import PodSubstrate
from dutyfree.substrates.kubernetes.client import DRIVER, Client
from dutyfree.substrates.kubernetes.manifest import pod_manifest
from dutyfree.substrates.kubernetes.owner import Owner
from dutyfree.substrates.kubernetes.pod import Pod

NETWORK_LABEL = "dutyfree.network"
"""On a namespace, with the value `none`: who runs the cluster vouches that its pods reach nobody."""

_ABSENT, _FORBIDDEN = 404, 403


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings for the use of a cluster."""

    dispatch: Dispatch = "agent"
    profile: Profile = "default"
    wait: bool = False
    """Wait for `Ready` before the first exec call, instead of trying one until it works."""
    repository: str = ""
    """Where the nodes find the images of our store; empty: by their bare names, on the nodes already."""
    runtime_class: str | None = None


def pod_capabilities(networks: frozenset[Network], settings: Settings) -> Capabilities:
    """Capabilities of a pod."""
    agent = settings.dispatch == "agent"
    hardened = settings.profile == "hardened"
    notes = {
        "limits": "a pod has no quota for disk_bytes and files, and pids are the node's setting, not a pod's",
        "storages": "the root is read-only; /tmp, /run, /var/tmp, /root and /home are in memory"
        if hardened
        else "writes go to the node's own writable layer on disk, whichever is asked for",
        "networks": "a pod has its cluster's network, unless who runs it vouches for none: label the namespace "
        f"{NETWORK_LABEL}=none",
    }
    if not agent:
        notes |= {**API_NOTES, "users": "an exec call of a pod has no user; use dispatch=agent"}
    return Capabilities(
        isolation="namespace",
        dispatch=settings.dispatch,
        limits=frozenset({"cpus", "memory_bytes"}),
        networks=networks,
        storages=frozenset({"memory"} if hardened else {"memory", "disk"}),
        medium="memory" if hardened else "disk",
        users=agent,
        stream=agent,
        terminal=agent,
        shell=agent,
        forward=agent,
        process_tree=agent,
        notes=notes,
    )


class KubernetesSubstrate(PodSubstrate):
    """Pods of one namespace. Made by `open_cluster`."""

    def __init__(
        self, client: Client, owner: Owner, settings: Settings, version: str, capabilities: Capabilities
    ) -> None:
        super().__init__(
            DRIVER, client, owner, dispatch=settings.dispatch, repository=settings.repository, version=version,
            capabilities=capabilities,
        )  # fmt: skip
        self._settings = settings

    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        pod = Pod(self._client, name)
        manifest = pod_manifest(
            spec,
            name=name,
            image=await self._find_image(spec.image),
            owner=self._owner.mark,
            lease=self._owner.reference,
            profile=self._settings.profile,
            runtime_class=self._settings.runtime_class,
        )
        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=pod.remove, failure=pod.why,
            start_ns=start_ns,
        )  # fmt: skip

        async def begin() -> Pod:
            await pod.create(manifest)
            birth.created()
            return pod

        # The scheduler's and the kubelet's time is a control plane's: readiness counts from the container that runs.
        return await self._boot(birth, begin, wait=self._settings.wait, reached=birth.waited)


async def open_cluster(client: Client, settings: Settings) -> KubernetesSubstrate:
    """Look, claim, sweep. The client is the substrate's from here on."""
    try:
        version, networks = await look(client)
        owner = Owner(client)
        await owner.claim()
        return KubernetesSubstrate(client, owner, settings, version, pod_capabilities(networks, settings))
    except BaseException:
        await finish(client.close())
        raise


async def look(client: Client) -> tuple[str, frozenset[Network]]:
    """Ask the cluster for its version, and for the networks that its pods have."""
    version = await client.call("GET", "/version")
    if not version.ok:
        raise Unavailable(f"the cluster at {client.server} answers {version.message}", driver=DRIVER)
    found = await client.call("GET", f"/api/v1/namespaces/{client.namespace}")
    if found.status == _ABSENT:
        raise Unavailable(
            f"there is no namespace {client.namespace!r}",
            enable=f"kubectl create namespace {client.namespace}",
            driver=DRIVER,
        )
    if not found.ok and found.status != _FORBIDDEN:
        raise Unavailable(f"the cluster at {client.server} answers {found.message}", driver=DRIVER)
    labels = (found.body["metadata"].get("labels") or {}) if found.ok else {}
    none = labels.get(NETWORK_LABEL) == "none"
    return f"kubernetes {version.body['gitVersion']}", frozenset({"none"} if none else {"host"})
