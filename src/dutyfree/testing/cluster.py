"""The cluster that tests run on: the one of DUTYFREE_TEST_KUBECONFIG, or the one that `make cluster` brought up.

cluster                 a fixture; import it into a conftest
"""

from __future__ import annotations

import os

import pytest

from dutyfree.core.errors import DutyfreeError
from dutyfree.substrates.image.resolve import resolve
from dutyfree.substrates.image.store import Store
from dutyfree.substrates.registry import find

VARIABLE = "DUTYFREE_TEST_KUBECONFIG"
OURS = "/run/dutyfree/cluster/kubeconfig"
ENABLE = "make cluster-build && make cluster"


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
