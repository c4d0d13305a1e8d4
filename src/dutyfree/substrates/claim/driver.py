"""Driver `kubernetes-claim`: whose pool, which template, and how the claimed pods are used.

kubernetes-claim                        claims of the namespace's only template, each started cold
kubernetes-claim?template=bench&warm=2  from a pool of our own that keeps two sandboxes ready
kubernetes-claim?pool=team              from a SandboxWarmPool that is there already
kubernetes-claim?ready=poll             try an exec call from the moment a node is found, instead of waiting for Ready
kubernetes-claim?dispatch=api · kubeconfig=/path&context=c&namespace=n · repository=registry.example/team/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.core.errors import Misuse
from dutyfree.core.spec import Network
from dutyfree.substrates.engine.options import check_options, dispatch_of
from dutyfree.substrates.kubernetes.driver import ask_cluster, kubeconfig

if TYPE_CHECKING:
    from dutyfree.substrates.kubernetes.client import Client

_OPTIONS = ("dispatch", "ready", "template", "pool", "warm", "kubeconfig", "context", "namespace", "repository")
_MOST_WARM = 1000


class ClaimDriver(Driver):
    """The entry point's object."""

    name = "kubernetes-claim"
    summary = "pods that agent-sandbox hands out by claim, cold or from a warm pool"

    def declared(self) -> list[Capabilities]:
        """In both dispatch modes, on a cluster whose namespace has no network."""
        from dutyfree.substrates.claim.substrate import claim_capabilities  # noqa: PLC0415 - a second of imports

        networks: frozenset[Network] = frozenset({"none"})
        return [claim_capabilities(networks, "agent"), claim_capabilities(networks, "api")]

    def probe(self) -> Availability:
        """Ask the cluster of the kubeconfig whether it has claims and templates; nothing is made in it."""
        return ask_cluster(_look)

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Claim a place in the namespace; remove what dead owners left in it; make a pool unless one is named."""
        check_options(options, _OPTIONS, self.name)
        from dutyfree.substrates.claim.substrate import ClaimSettings, open_claims  # noqa: PLC0415 - as above
        from dutyfree.substrates.kubernetes.client import open_client  # noqa: PLC0415

        pool = options.get("pool")
        if pool is not None and not {"template", "warm"}.isdisjoint(options):
            raise Misuse("has a template and a size of its own: give neither", field="pool", driver=self.name)
        settings = ClaimSettings(
            dispatch=dispatch_of(options),
            wait=options.get("ready", "wait") == "wait",
            repository=options.get("repository", ""),
            template=options.get("template"),
            pool=pool,
            warm=_warm(options.get("warm", "0")),
        )
        path = kubeconfig(options.get("kubeconfig"))
        client = await open_client(path, options.get("context"), options.get("namespace"))
        return await open_claims(client, settings)


driver = ClaimDriver()


def _warm(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_WARM:
        raise Misuse(f"must be a number up to {_MOST_WARM}, not {text!r}", field="warm", driver=driver.name)
    return int(text)


async def _look(client: Client) -> Availability:
    from dutyfree.substrates.claim.group import VERSION, check_served  # noqa: PLC0415 - as above
    from dutyfree.substrates.claim.substrate import claim_capabilities  # noqa: PLC0415
    from dutyfree.substrates.claim.template import MAKE_ONE, list_templates  # noqa: PLC0415
    from dutyfree.substrates.kubernetes.substrate import look  # noqa: PLC0415

    version, networks = await look(client)
    await check_served(client)
    names = await list_templates(client)
    if not names:
        reason = f"namespace {client.namespace} has no SandboxTemplate"
        return Availability(available=False, reason=reason, enable=MAKE_ONE)
    if len(names) > 1:
        reason = f"namespace {client.namespace} has the templates {', '.join(names)}: one has to be named"
        enable = f"dutyfree run -s 'kubernetes-claim?template={names[0]}' …"
        return Availability(available=False, reason=reason, enable=enable)
    return Availability(
        available=True,
        reason=f"cluster at {client.server}, namespace {client.namespace}, template {names[0]}",
        version=f"{version}, agent-sandbox {VERSION}",
        capabilities=claim_capabilities(networks, "agent"),
    )
