"""Around every test: what it took of the machine it gives back."""

import os
from collections.abc import Iterator

import hypothesis
import pytest
from support.account import rootless_user  # noqa: F401 - as below
from support.cluster import claims, cluster  # noqa: F401 - as below
from support.daemons import bench, docker_engine, podman_engine, provide_bench  # noqa: F401 - fixtures for every folder
from support.kernel import no_filters
from support.machines import machines  # noqa: F401 - as above
from support.opensandbox import opensandbox  # noqa: F401

from dutyfree.testing.leaks import TOKEN_VARIABLE, holdings, leaked
from dutyfree.testing.sharing import commons  # noqa: F401

PATIENCE_S = 5.0
"""For what ends by itself: on a busy machine a killed process takes its time."""


CONFINED = (
    "native/tests/test_agent_unpack.py::test_nothing_hostile_is_unpacked_where_openat2_is_missing",
    "native/tests/test_spawner",
    "tests/containment/",
    "tests/contract/test_claims.py",
    "tests/contract/test_containers.py",
    "tests/contract/test_contract.py::TestNative",
    "tests/contract/test_contract.py::TestWarmNative",
    "tests/contract/test_daytona.py",
    "tests/contract/test_example_driver.py",
    "tests/contract/test_hosted.py",
    "tests/contract/test_machines.py",
    "tests/contract/test_modal.py",
    "tests/contract/test_opensandbox.py",
    "tests/contract/test_pods.py",
    "tests/contract/test_rootless.py",
    "tests/faults/",
    "tests/fuzz/test_syscalls.py",
    "tests/judges/",
    "tests/system/",
    "tests/unit/cli/test_main.py::test_what_the_memory_limit_killed_is_told_though_the_command_ends_well",
    "tests/unit/cli/test_run.py",
    "tests/unit/warm/",
)
"""Tests of sandboxes and containers that live behind a seccomp filter."""


hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[TOKEN_VARIABLE] = str(os.getpid())
    os.environ["DUTYFREE_CONFIG"] = ""  # the developer's own settings are no part of what is tested
    os.environ.pop("DUTYFREE_SUBSTRATE", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if (why := no_filters()) is not None:
        for item in items:
            if item.nodeid.startswith(CONFINED):
                item.add_marker(pytest.mark.skip(why))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What takes longer than a test may is made before the first one."""
    if not session.config.option.collectonly and any("bench" in item.fixturenames for item in session.items):
        why = provide_bench()
        if why is not None:
            session.config.get_terminal_writer().line(f"image bench: {why}")


@pytest.fixture(autouse=True)
def gives_everything_back(request: pytest.FixtureRequest) -> Iterator[None]:
    before = holdings(orphans=False)
    yield
    left = leaked(before, PATIENCE_S, sockets=not getattr(request.cls, "restless", False), orphans=False)
    assert not left, "left behind:\n" + "\n".join(f"  {kind}: {what}" for kind, what in left)
