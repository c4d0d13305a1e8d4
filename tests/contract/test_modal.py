"""The conformance suite on `modal`: the vendor's real client, against a server of ours that speaks as the vendor does."""

from typing import ClassVar

import pytest

from dutyfree.testing import ContractSuite, SharedSuite
from dutyfree.testing.modal_account import IMAGE, modal_settles, modal_vendor  # noqa: F401 - fixtures

NO_COUNT = "what stands for the vendor's containers here shows no count of kills inside"


@pytest.fixture(scope="module")
def modal_options(modal_vendor: object) -> dict[str, str]:  # noqa: F811 - a fixture by its name
    return {"ttl": "7200"}  # the main process sleeps as long, and another sleep would look like something left behind


@pytest.mark.protocol
@pytest.mark.usefixtures("modal_settles")
class TestModal(SharedSuite, ContractSuite):
    substrate_name = "modal"
    image = IMAGE
    engine = "modal_options"
    gaps: ClassVar[dict[str, str]] = {"test_more_memory_than_the_limit_ends_as_oom": NO_COUNT}


class TestModalApi(TestModal):
    """As above, by exec calls."""

    options: ClassVar[dict[str, str]] = {"dispatch": "api"}
    gaps: ClassVar[dict[str, str]] = {
        "test_a_signal_that_is_not_ours_is_told_apart_from_an_exit": "an exec call reports a signal as an exit code of 128 + n",
        "test_two_sandboxes_can_listen_on_the_same_port": "the test streams, which an exec call per command does not offer",
        "test_more_memory_than_the_limit_ends_as_oom": NO_COUNT,
    }
