"""The OpenSandbox server that tests run on: the one of OPEN_SANDBOX_DOMAIN, or the one that `make opensandbox` brought up.

opensandbox             a fixture; import it into a conftest
"""

from __future__ import annotations

import pytest

from dutyfree.core.errors import DutyfreeError
from dutyfree.substrates.registry import find


@pytest.fixture(scope="session")
def opensandbox(bench: None) -> None:
    """A server that answers, or a skip that says how to have one. It has our image if it is ours."""
    try:
        found = find("opensandbox")[0].probe()
    except DutyfreeError as error:
        pytest.skip(str(error))
    if not found.available:
        pytest.skip(f"opensandbox: {found.reason}; enable: {found.enable}")
