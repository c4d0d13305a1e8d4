"""The conformance suite on podman without root: a service of an ordinary user, reached by its socket."""

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import pytest
from test_containers import PODMAN_GAPS, ContainerSuite

from dutyfree.substrates.container.podman_service import Service

pytestmark = pytest.mark.slow("container engines and runtimes")


@pytest.fixture(scope="module")
def rootless_options(rootless_user: str, bench: None) -> Iterator[dict[str, str]]:
    service = asyncio.run(Service.start(None, rootless_user))
    try:
        yield {"socket": service.socket}
    finally:
        asyncio.run(service.close())


@pytest.mark.timeout(300)
class TestPodmanRootless(ContainerSuite):
    substrate_name = "podman"
    engine = "rootless_options"
    topics: ClassVar[set[str]] = {"EndOfLifeSuite", "IsolationSuite", "LifecycleSuite", "LimitSuite"}
    """What a service without root can get wrong by itself."""
    gaps: ClassVar[dict[str, str]] = PODMAN_GAPS
