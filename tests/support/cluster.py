"""The cluster that tests run on: the one of DUTYFREE_TEST_KUBECONFIG, or the one that `make cluster` brought up.

cluster                 a fixture; import it into a conftest
claims                  the same, of a cluster that has agent-sandbox and the template that the tests use
"""

from __future__ import annotations

import asyncio
import os

import pytest

from dutyfree.core.errors import DutyfreeError
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Store
from dutyfree.substrates.registry import find

VARIABLE = "DUTYFREE_TEST_KUBECONFIG"
OURS = "/run/dutyfree/cluster/kubeconfig"
ENABLE = "make cluster-build && make cluster"
ENABLE_CLAIMS = "make claims-build && make cluster-stop cluster"
TEMPLATE = "bench"


@pytest.fixture(scope="session")
def cluster() -> str:
    """A kubeconfig whose cluster answers and has our image, or a skip that says how to have one."""
    path = os.environ.get(VARIABLE, OURS)
    if not os.path.exists(path):
        pytest.skip(f"no cluster is up ({VARIABLE} or {OURS}); enable: {ENABLE}")
    store = Store.default()
    try:
        find("kubernetes")
        resolve("bench", store)
    except DutyfreeError as error:
        pytest.skip(str(error))
    finally:
        store.close()
    return path


@pytest.fixture(scope="session")
def claims(cluster: str) -> str:
    """A kubeconfig whose cluster hands out sandboxes by claim, or a skip that says how to have one."""
    try:
        names = asyncio.run(_templates(cluster))
    except DutyfreeError as error:
        pytest.skip(f"claims: {error.message}; enable: {ENABLE_CLAIMS}")
    if TEMPLATE not in names:
        pytest.skip(f"claims: the cluster has no template {TEMPLATE!r}; enable: {ENABLE_CLAIMS}")
    return cluster


async def _templates(kubeconfig: str) -> list[str]:
    from dutyfree.substrates.claim.group import check_served
    from dutyfree.substrates.claim.template import list_templates
    from dutyfree.substrates.kubernetes.client import open_client

    client = await open_client(kubeconfig, None, None)
    try:
        await check_served(client)
        return await list_templates(client)
    finally:
        await client.close()
