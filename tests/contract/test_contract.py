"""The conformance suite on every driver of this machine."""

import pytest

from dutyfree.core.contract import Sandbox
from dutyfree.substrates.host.sandbox import HostSandbox
from dutyfree.substrates.registry import find
from dutyfree.testing import ContractSuite, FileSuite, LifecycleSuite
from dutyfree.warm import Lease


def needs(name: str) -> pytest.MarkDecorator:
    found = find(name)[0].probe()
    return pytest.mark.skipif(
        not found.available, reason=f"{name}: {found.reason}; enable: {found.enable or 'nothing known'}"
    )


class TestHost(ContractSuite):
    substrate_name = "host"
    gaps = dict.fromkeys(
        (
            "test_a_script_can_be_watched_while_it_runs",
            "test_output_of_a_watched_script_comes_before_its_end",
            "test_a_watched_script_is_killed_with_its_block_and_may_end_its_shell",
        ),
        "a shell on the host collects its output",
    )

    def scratch(self, box: Sandbox) -> str:
        assert isinstance(box, HostSandbox)
        return f"{box.directory}/contract"


@needs("native")
class TestNative(ContractSuite):
    substrate_name = "native"


@pytest.mark.slow("the contract on a pool")
class TestWarmHost(TestHost):
    substrate_name = "warm:host"

    def scratch(self, box: Sandbox) -> str:
        assert isinstance(box, Lease)
        return super().scratch(box.inner)


@needs("native")
@pytest.mark.slow("the contract on a pool")
class TestWarmNative(ContractSuite):
    substrate_name = "warm:native"


class TestNoop(LifecycleSuite, FileSuite):
    substrate_name = "noop"
