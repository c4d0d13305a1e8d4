"""The conformance suite on claims of agent-sandbox: cold in both dispatch modes, and from a warm pool of two."""

import asyncio
import os
from collections.abc import Iterator
from typing import ClassVar

import pytest
from support.cluster import TEMPLATE
from test_pods import ENDLESS, EXEC_GAPS

from dutyfree.testing import ContractSuite, SharedSuite

pytestmark = pytest.mark.slow("a Kubernetes cluster")


@pytest.fixture(scope="module")
def cold(claims: str) -> dict[str, str]:
    return {"kubeconfig": claims, "template": TEMPLATE}


@pytest.fixture(scope="module")
def warm(claims: str) -> Iterator[dict[str, str]]:
    """A pool that is there already, as somebody else's."""
    from dutyfree.substrates.claim.group import POOLS
    from dutyfree.substrates.kubernetes.client import open_client

    name = f"dutyfree-test-{os.getpid()}"
    pool = {
        "apiVersion": POOLS[1].removeprefix("apis/"),
        "kind": "SandboxWarmPool",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "sandboxTemplateRef": {"name": TEMPLATE}},
    }

    async def ask(method: str, path: str, body: object) -> bool:
        client = await open_client(claims, None, None)
        try:
            return (await client.call(method, client.place(POOLS[0], path, POOLS[1]), body)).ok
        finally:
            await client.close()

    assert asyncio.run(ask("POST", "", pool))
    yield {"kubeconfig": claims, "pool": name}
    assert asyncio.run(ask("DELETE", name, None))


class TestClaims(SharedSuite, ContractSuite):
    substrate_name = "kubernetes-claim"
    image = "bench"
    engine = "cold"
    restless = True
    topics: ClassVar[set[str]] = {
        "ConcurrencySuite",
        "EndOfLifeSuite",
        "IsolationSuite",
        "LifecycleSuite",
        "LimitSuite",
    }
    """What becomes of a claim. What is done in it is done in a pod: `test_pods` shows that."""


class TestWarmClaims(TestClaims):
    """As above, of sandboxes that were there before they were asked for."""

    options: ClassVar[dict[str, str]] = {}
    engine = "warm"


class TestClaimsApi(TestClaims):
    """As above, cold, by exec calls."""

    options: ClassVar[dict[str, str]] = {"dispatch": "api"}
    gaps = EXEC_GAPS
    endless = ENDLESS
