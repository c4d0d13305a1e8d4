"""agent-sandbox's resources in a cluster: what they are called, whether they are there, and what to do if not."""

from __future__ import annotations

from dutyfree.core.errors import Unavailable
from dutyfree.substrates.kubernetes.client import Client
from dutyfree.substrates.kubernetes.owner import Kind

DRIVER = "kubernetes-claim"
VERSION = "v1beta1"
"""Of the resources; agent-sandbox serves it since 0.5."""

_EXTENSIONS = "apis/extensions.agents.x-k8s.io"
CLAIMS: Kind = ("sandboxclaims", f"{_EXTENSIONS}/{VERSION}")
POOLS: Kind = ("sandboxwarmpools", f"{_EXTENSIONS}/{VERSION}")
TEMPLATES: Kind = ("sandboxtemplates", f"{_EXTENSIONS}/{VERSION}")
SANDBOXES: Kind = ("sandboxes", f"apis/agents.x-k8s.io/{VERSION}")

ENABLE = (
    "kubectl apply -f https://github.com/kubernetes-sigs/agent-sandbox/releases/download/v0.5.6/sandbox-with-extensions.yaml"
    " -f docs/guide/claims.yaml (on the cluster of `make cluster`: make claims-build && make cluster-stop cluster)"
)
_ABSENT = 404


async def check_served(client: Client) -> None:
    """`Unavailable`, with what to apply, unless the cluster has the resources that we speak of."""
    found = await client.call("GET", f"/{_EXTENSIONS}")
    if found.status == _ABSENT:
        raise Unavailable("the cluster has no SandboxClaim: agent-sandbox is not in it", enable=ENABLE, driver=DRIVER)
    if not found.ok:
        raise Unavailable(f"the cluster at {client.server} answers {found.message}", driver=DRIVER)
    served = [one["version"] for one in found.body["versions"]]
    if VERSION not in served:
        raise Unavailable(
            f"the cluster serves SandboxClaim as {', '.join(served)} only; it takes {VERSION}",
            enable=ENABLE,
            driver=DRIVER,
        )
