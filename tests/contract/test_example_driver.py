"""The conformance suite on `examples/driver.py`: the smallest real driver, outside the package."""

import os
import shutil
from collections.abc import Iterator
from typing import ClassVar

import pytest

import dutyfree
from dutyfree import driver as kit
from dutyfree.core.contract import Substrate
from dutyfree.core.pending import Pending
from dutyfree.testing import ContractSuite, SharedSuite

pytestmark = pytest.mark.slow("the example of a driver")

GAPS = {
    "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
    "test_what_a_command_leaves_running_is_killed_at_its_end": "nothing of ours is inside to notice leftovers",
    "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an exec call per command does not offer",
}


@pytest.fixture(scope="module")
def engine_program(docker_engine: str, bench: None) -> Iterator[dict[str, str]]:
    if shutil.which("docker") is None:
        pytest.skip("the docker program is missing; enable: apt-get install -y docker-cli")
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = f"unix://{docker_engine}"
    yield {}
    if before is None:
        del os.environ["DOCKER_HOST"]
    else:
        os.environ["DOCKER_HOST"] = before


class TestExampleDriver(SharedSuite, ContractSuite):
    substrate_name = "examples.driver:driver"
    engine = "engine_program"
    image = "dutyfree/bench:example"
    gaps: ClassVar[dict[str, str]] = GAPS

    def connect(self) -> Pending[Substrate]:
        return Pending(_connect(), _close)


async def _connect() -> Substrate:
    """The docker driver brings the common image into the engine; the example only knows the engine's own names."""
    async with dutyfree.connect("docker") as docker:
        key = await docker.image_key("bench")
    await kit.run_program("docker", "tag", key, TestExampleDriver.image)
    return await dutyfree.connect(TestExampleDriver.substrate_name)


async def _close(substrate: Substrate) -> None:
    await substrate.close()
