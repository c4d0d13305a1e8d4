"""The conformance suite on embedded microVMs: where KVM is usable."""

from typing import ClassVar

import pytest
from test_containers import API_GAPS, ApiMixin, ContainerSuite

from dutyfree.substrates.registry import find

WHOLE = {
    "test_more_processor_time_than_the_limit_cannot_be_had": "a machine has whole processors, and half a one is refused",
    "test_more_memory_than_the_limit_ends_as_oom": "a machine of 64 MiB is refused: its kernel would not fit",
}
COUNTED = {
    "test_what_the_memory_limit_killed_is_told_where_the_command_survives_it": WHOLE[
        "test_more_memory_than_the_limit_ends_as_oom"
    ],
    "test_what_the_memory_limit_killed_is_told_of_shells_and_streams_too": WHOLE[
        "test_more_memory_than_the_limit_ends_as_oom"
    ],
}


@pytest.fixture(scope="class")
def peer(request: pytest.FixtureRequest) -> dict[str, str]:
    """What stands in the way is said first; the image is only made where it is of use."""
    name = request.cls.substrate_name
    found = find(name)[0].probe()
    if not found.available:
        pytest.skip(f"{name}: {found.reason}; enable: {found.enable}")
    request.getfixturevalue("bench")
    return {}


@pytest.mark.timeout(600)
class PeerSuite(ContainerSuite):
    engine = "peer"


class TestMicrosandbox(ApiMixin, PeerSuite):
    substrate_name = "microsandbox"
    gaps: ClassVar[dict[str, str]] = {**API_GAPS, **WHOLE}


class TestMicrosandboxAgent(PeerSuite):
    """As above, by our agent on one exec stream."""

    substrate_name = "microsandbox"
    options: ClassVar[dict[str, str]] = {"dispatch": "agent"}
    gaps: ClassVar[dict[str, str]] = {**WHOLE, **COUNTED}


class TestBoxlite(ApiMixin, PeerSuite):
    substrate_name = "boxlite"
    gaps: ClassVar[dict[str, str]] = {**API_GAPS, **WHOLE}
