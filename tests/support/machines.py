"""Whether virtual machines can be tested here: a fixture for a conftest."""

from __future__ import annotations

import os

import pytest

from dutyfree.substrates.vm.driver import driver
from support.daemons import need_bench

ASKED = "DUTYFREE_TEST_MACHINES"
ALL, NONE = "1", "0"
"""Values of it: every case, or none. Unset: those that a machine can get wrong by itself."""


@pytest.fixture(scope="session")
def machines() -> None:
    """QEMU, a kernel and the common rootfs; or a skip that says how they are had."""
    if os.environ.get(ASKED) == NONE:
        pytest.skip(f"virtual machines were not asked for: {ASKED}={ALL} make test")
    found = driver.probe()
    if not found.available:
        pytest.skip(f"virtual machines: {found.reason}; enable: {found.enable}")
    need_bench()
