"""The conformance suite on the container drivers, in both dispatch modes."""

from typing import ClassVar

import pytest

from dutyfree.core.errors import SandboxLost
from dutyfree.substrates.registry import find
from dutyfree.testing import ContractSuite, SharedSuite, Suite
from dutyfree.testing.isolation import FORK
from dutyfree.testing.lifecycle import is_lost

pytestmark = pytest.mark.slow("container engines and runtimes")

API_GAPS = {
    "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
    "test_what_a_command_leaves_running_is_killed_at_its_end": "nothing of ours is inside to notice leftovers",
    "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an exec call per command does not offer",
}
HELD_UP = "a runtime's exec (or ssh) waits for the output's end, whoever keeps it open"
RUNTIME_GAPS = {
    **API_GAPS,
    "test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back": HELD_UP,
    "test_what_a_command_leaves_running_is_killed_at_its_end": HELD_UP,
}
PODMAN_GAPS = {
    "test_what_was_removed_stays_removed": "podman gives a container whose image has no /etc/passwd one of its own",
}
ENDLESS = frozenset(name for name, why in RUNTIME_GAPS.items() if why == HELD_UP)
FULL_GAPS = {
    **RUNTIME_GAPS,
    "test_more_processes_than_the_limit_cannot_be_had": "with every process taken, no exec call can start to kill one",
}
FULL_ENDLESS = ENDLESS | (FULL_GAPS.keys() - RUNTIME_GAPS.keys())


@pytest.fixture(scope="module")
def docker_options(docker_engine: str) -> dict[str, str]:
    return {"socket": docker_engine}


@pytest.fixture(scope="module")
def podman_options(podman_engine: str) -> dict[str, str]:
    return {"socket": podman_engine}


@pytest.fixture(scope="class")
def installed(request: pytest.FixtureRequest, bench: None) -> dict[str, str]:
    name = request.cls.substrate_name
    found = find(name)[0].probe()
    if not found.available:
        pytest.skip(f"{name}: {found.reason}; enable: {found.enable}")
    return {}


class ContainerSuite(SharedSuite, ContractSuite):
    image = "bench"
    engine = "installed"

    async def test_a_lifetime_counts_from_the_creation_and_not_from_a_reset(self) -> None:
        """A reset may take longer than is left: then the sandbox is gone already."""
        box = await self.resetting(lifetime_s=3.0)
        with pytest.raises(SandboxLost):  # noqa: PT012 - by whichever comes first
            await box.reset()
            await box.run(["sleep", "60"])
        assert await is_lost(box)
        await box.destroy()


DISPATCH = {"ApiMixin", "ConcurrencySuite", "EndOfLifeSuite", "EndingSuite", "LifecycleSuite", "OutputSuite"}
"""What an engine's own exec call can get wrong. The rest of `api` is the same for all of them: `docker` shows it."""


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
    engine = "docker_options"


class TestDockerApi(ApiMixin, TestDocker):
    """As above, by exec calls."""


class TestPodman(ContainerSuite):
    substrate_name = "podman"
    engine = "podman_options"
    gaps: ClassVar[dict[str, str]] = PODMAN_GAPS


class TestPodmanApi(ApiMixin, TestPodman):
    """As above, by exec calls."""

    topics = DISPATCH
    gaps: ClassVar[dict[str, str]] = {**API_GAPS, **PODMAN_GAPS}


class TestRunc(ContainerSuite):
    substrate_name = "runc"


class TestRuncApi(ApiMixin, TestRunc):
    topics = DISPATCH
    endless = FULL_ENDLESS
    gaps: ClassVar[dict[str, str]] = FULL_GAPS


class TestGvisor(ContainerSuite):
    substrate_name = "gvisor"
    endless = frozenset({"test_a_terminal_can_be_resized"})
    gaps: ClassVar[dict[str, str]] = {
        "test_a_terminal_can_be_resized": "runsc keeps the new size and does not send SIGWINCH",
    }


class TestGvisorApi(ApiMixin, TestGvisor):
    topics = DISPATCH
    endless = ENDLESS
    gaps: ClassVar[dict[str, str]] = {
        **RUNTIME_GAPS,
        "test_a_place_that_is_not_there_is_misuse": "runsc exec starts in a directory that is not there",
        "test_a_place_that_is_not_there_is_told_at_creation": "as above",
    }
