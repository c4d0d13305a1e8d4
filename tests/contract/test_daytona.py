"""The conformance suite on `daytona`: the vendor's own SDK, against a server that speaks its wire format. Protocol tests."""

from collections.abc import Iterator
from typing import ClassVar

import pytest
from support.protocol.daytona import IMAGE
from support.protocol.server import Served, served
from test_hosted import ENDLESS, GAPS

from dutyfree.testing import ContractSuite

pytestmark = [pytest.mark.slow("vendors' SDKs over their wire formats"), pytest.mark.protocol]

WHOLE = "the vendor has whole processors and GiB; parts of them are refused"
LIMIT_THAT_KILLS = "test_output_beyond_the_limit_is_fatal_if_asked"


@pytest.fixture(scope="module")
def daytona_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("daytona", reason="the daytona SDK is not installed; enable: pip install 'dutyfree[daytona]'")
    with served("support.protocol.daytona", tmp_path_factory.mktemp("daytona")) as server:
        yield server


class TestDaytona(ContractSuite):
    substrate_name = "daytona"
    image = IMAGE
    gaps: ClassVar[dict[str, str]] = {
        **GAPS,
        LIMIT_THAT_KILLS: "the vendor answers when the command has ended, and not before",
        "test_more_memory_than_the_limit_ends_as_oom": WHOLE,
        "test_less_memory_than_the_limit_is_fine": WHOLE,
        "test_files_without_a_limit_of_their_own_do_not_use_up_the_memory": WHOLE,
        "test_more_disk_than_the_limit_cannot_be_written": WHOLE,
        "test_more_processor_time_than_the_limit_cannot_be_had": WHOLE,
        "test_a_limit_that_is_not_enforced_is_refused": WHOLE,
    }
    endless = ENDLESS | {LIMIT_THAT_KILLS}

    @pytest.fixture(autouse=True)
    def _there(self, daytona_server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("DAYTONA_API_URL", f"{daytona_server.url}/api")
        monkeypatch.setenv("DAYTONA_API_KEY", daytona_server.key)
        yield
        daytona_server.settle()
        assert daytona_server.places() == {}
