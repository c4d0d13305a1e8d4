"""The conformance suite on pods, in both dispatch modes."""

from typing import ClassVar

import pytest

from dutyfree.core.contract import Substrate
from dutyfree.core.pending import Pending
from dutyfree.substrates.registry import connect
from dutyfree.testing import ContractSuite


class TestKubernetes(ContractSuite):
    substrate_name = "kubernetes"
    image = "bench"
    options: ClassVar[dict[str, str]] = {}

    def connect(self) -> Pending[Substrate]:
        return connect("kubernetes", kubeconfig=self.kubeconfig, **self.options)

    @pytest.fixture(autouse=True)
    def _there(self, cluster: str) -> None:
        self.kubeconfig = cluster


class TestKubernetesApi(TestKubernetes):
    """As above, by exec calls."""

    options: ClassVar[dict[str, str]] = {"dispatch": "api"}
    gaps: ClassVar[dict[str, str]] = {
        "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
        "test_a_leftover_that_keeps_the_output_open_does_not_hold_the_result_back": "containerd's exec waits for the output's end",
        "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an exec call per command does not offer",
    }
