"""The conformance suite on the container drivers, in both dispatch modes."""

from typing import ClassVar

import pytest

from dutyfree.core.contract import Substrate
from dutyfree.core.pending import Pending
from dutyfree.substrates.registry import connect, find
from dutyfree.testing import ContractSuite, Suite
from dutyfree.testing.isolation import FORK

API_GAPS = {
    "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
    "test_what_a_command_leaves_running_is_killed_at_its_end": "nothing of ours is inside to notice leftovers",
    "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an exec call per command does not offer",
}
RUNTIME_GAPS = {
    **API_GAPS,
    "test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back": "a runtime's exec waits for the output's end",
}


class ContainerSuite(ContractSuite):
    image = "bench"
    options: ClassVar[dict[str, str]] = {}

    def connect(self) -> Pending[Substrate]:
        return connect(self.substrate_name, **self.options, **self.place)

    @property
    def place(self) -> dict[str, str]:
        return {}

    @pytest.fixture(autouse=True)
    def _there(self, bench: None) -> None:
        found = find(self.substrate_name)[0].probe()
        if self.substrate_name != "docker" and not found.available:
            pytest.skip(f"{self.substrate_name}: {found.reason}; enable: {found.enable}")


class ApiMixin(Suite):
    """An exec call per action: what that does not promise."""

    options: ClassVar[dict[str, str]] = {"dispatch": "api"}
    gaps: ClassVar[dict[str, str]] = API_GAPS

    async def test_more_processes_than_the_limit_cannot_be_had(self) -> None:
        """The limit holds; what the command leaves running then may leave no room for another exec call."""
        box = await self.limited(pids=16)
        try:
            outcome = await box.run(["python3", "-c", FORK], timeout_s=10)
            assert 0 < int(outcome.stdout) <= 16
        finally:
            await box.destroy()


class TestDocker(ContainerSuite):
    substrate_name = "docker"

    @pytest.fixture(autouse=True)
    def _engine(self, docker_engine: str) -> None:
        self.socket = docker_engine

    @property
    def place(self) -> dict[str, str]:
        return {"socket": self.socket}


class TestDockerApi(ApiMixin, TestDocker):
    """As above, by exec calls."""


class TestPodman(ContainerSuite):
    substrate_name = "podman"


class TestPodmanApi(ApiMixin, TestPodman):
    """As above, by exec calls."""


class TestRunc(ContainerSuite):
    substrate_name = "runc"


class TestRuncApi(ApiMixin, TestRunc):
    gaps: ClassVar[dict[str, str]] = {
        **RUNTIME_GAPS,
        "test_more_processes_than_the_limit_cannot_be_had": "with every process taken, no exec call can start to kill one",
    }


class TestGvisor(ContainerSuite):
    substrate_name = "gvisor"
    gaps: ClassVar[dict[str, str]] = {
        "test_a_terminal_can_be_resized": "runsc keeps the new size and does not send SIGWINCH",
    }


class TestGvisorApi(ApiMixin, TestGvisor):
    gaps: ClassVar[dict[str, str]] = {
        **{name: why for name, why in RUNTIME_GAPS.items() if "leaves_running" not in name},
        "test_a_place_that_is_not_there_is_misuse": "runsc exec starts in a directory that is not there",
    }
