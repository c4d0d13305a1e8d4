"""Around every test: what it took of the machine it gives back."""

import os
from collections.abc import Iterator

import pytest
from support.account import rootless_user  # noqa: F401 - as below
from support.cluster import claims, cluster  # noqa: F401 - as below
from support.daemons import bench, docker_engine, podman_engine, provide_bench  # noqa: F401 - fixtures for every folder
from support.machines import machines  # noqa: F401 - as above
from support.opensandbox import opensandbox  # noqa: F401

from dutyfree.testing.leaks import TOKEN_VARIABLE, holdings, leaked
from dutyfree.testing.sharing import commons  # noqa: F401

PATIENCE_S = 5.0
"""For what ends by itself: on a busy machine a killed process takes its time."""


def pytest_configure(config: pytest.Config) -> None:
    os.environ[TOKEN_VARIABLE] = str(os.getpid())
    os.environ["DUTYFREE_CONFIG"] = ""  # the developer's own settings are no part of what is tested
    os.environ.pop("DUTYFREE_SUBSTRATE", None)


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
