"""The conformance suite on pods, in both dispatch modes."""

from typing import ClassVar

import pytest
from test_containers import DISPATCH

from dutyfree.testing import ContractSuite, SharedSuite

pytestmark = pytest.mark.slow("a Kubernetes cluster")

HELD_UP = "containerd's exec waits for the output's end, whoever keeps it open"
EXEC_GAPS = {
    "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
    "test_what_a_command_leaves_running_is_killed_at_its_end": HELD_UP,
    "test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back": HELD_UP,
    "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an exec call per command does not offer",
}
ENDLESS = frozenset(name for name, why in EXEC_GAPS.items() if why == HELD_UP)


@pytest.fixture(scope="module")
def pod_options(cluster: str) -> dict[str, str]:
    return {"kubeconfig": cluster}


class TestKubernetes(SharedSuite, ContractSuite):
    substrate_name = "kubernetes"
    image = "bench"
    engine = "pod_options"
    restless = True


class TestKubernetesApi(TestKubernetes):
    """As above, by exec calls."""

    topics = DISPATCH
    options: ClassVar[dict[str, str]] = {"dispatch": "api"}
    gaps = EXEC_GAPS
    endless = ENDLESS
