"""The conformance suite on the drivers of virtual machines. By default the cases that a machine can get wrong by itself: what is the
agent's alone is shown by `native` in the same run. All of them: DUTYFREE_TEST_MACHINES=1 (half an hour where KVM is not usable)."""

from typing import ClassVar

import pytest
from test_containers import FULL_ENDLESS, FULL_GAPS, ApiMixin

from dutyfree.image.store import Store
from dutyfree.substrates.vm.ssh import obstacle
from dutyfree.testing import ContractSuite, SharedSuite

pytestmark = pytest.mark.slow("virtual machines")

MICROVM_CASES = {
    "test_a_substrate_says_what_it_is",
    "test_a_sandbox_that_is_entered_is_destroyed_at_the_end",
    "test_an_unknown_image_is_misuse_and_leaves_nothing",
    "test_closing_a_substrate_destroys_what_is_left",
    "test_what_is_not_declared_is_unsupported",
    "test_cancelling_at_any_moment_of_creation_leaves_nothing",
    "test_destroying_ends_a_running_command_with_sandbox_lost",
    "test_a_lifetime_ends_the_sandbox_whatever_it_does",
    "test_an_idle_sandbox_is_destroyed",
    "test_a_file_of_one_sandbox_is_not_in_another",
    "test_without_a_network_nothing_outside_is_reached",
    "test_more_processes_than_the_limit_cannot_be_had",
    "test_more_memory_than_the_limit_ends_as_oom",
    "test_more_disk_than_the_limit_cannot_be_written",
    "test_more_files_than_the_limit_cannot_be_made",
    "test_more_processor_time_than_the_limit_cannot_be_had",
    "test_two_sandboxes_can_listen_on_the_same_port",
    "test_a_terminal_can_be_resized",
}
VM_CASES = {
    "test_a_substrate_says_what_it_is",
    "test_a_sandbox_that_is_entered_is_destroyed_at_the_end",
    "test_what_is_not_declared_is_unsupported",
    "test_more_memory_than_the_limit_ends_as_oom",
    "test_more_disk_than_the_limit_cannot_be_written",
    "test_destroying_ends_a_running_command_with_sandbox_lost",
}
API_CASES = {
    "test_a_sandbox_that_is_entered_is_destroyed_at_the_end",
    "test_without_a_network_nothing_outside_is_reached",
    "test_more_memory_than_the_limit_ends_as_oom",
    "test_destroying_ends_a_running_command_with_sandbox_lost",
}


@pytest.fixture(scope="class")
def emulated(machines: None) -> dict[str, str]:
    """Or a skip that says what is missing."""
    return {"accel": "tcg"}


@pytest.fixture(scope="class")
def emulated_with_ssh(emulated: dict[str, str]) -> dict[str, str]:
    why = obstacle(Store.default().root)
    if why is not None:
        pytest.skip(f"vm?dispatch=api: {why}; enable: make substrates")
    return emulated


@pytest.mark.timeout(600)
class MachineSuite(SharedSuite, ContractSuite):
    image = "bench"
    engine = "emulated"
    cases: ClassVar[set[str]]
    """Run unless all were asked for: see conftest.py."""


class TestMicrovm(MachineSuite):
    substrate_name = "microvm"
    options: ClassVar[dict[str, str]] = {"stock": "0"}
    cases = MICROVM_CASES


class TestVm(MachineSuite):
    substrate_name = "vm"
    cases = VM_CASES


class TestVmApi(ApiMixin, TestVm):
    """One ssh connection per action."""

    engine = "emulated_with_ssh"
    cases = API_CASES
    endless = FULL_ENDLESS
    gaps: ClassVar[dict[str, str]] = FULL_GAPS
