"""The conformance suite over ssh, to this very machine."""

import asyncio
from collections.abc import Iterator

import pytest
from support.sshd import private_sshd

from dutyfree.core.contract import Sandbox
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates.registry import connect
from dutyfree.testing import ContractSuite, SharedSuite

pytestmark = pytest.mark.slow("the contract over ssh")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with private_sshd(tmp_path_factory.mktemp("sshd")) as options:
        yield options


class TestSsh(SharedSuite, ContractSuite):
    substrate_name = "ssh"
    engine = "machine"

    def scratch(self, box: Sandbox) -> str:
        return f"/dev/shm/{box.id}/contract-{self._number}"


def refused(name: str, **options: str) -> None:
    async def main() -> None:
        await connect(name, **options)

    asyncio.run(main())


def test_a_machine_that_does_not_answer_is_unavailable():
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1 cannot be reached"):
        refused("ssh", host="127.0.0.1", port="1")


@pytest.mark.parametrize("host", ["", "-oProxyCommand=false"])
def test_a_host_that_is_none_is_misuse(host: str):
    with pytest.raises(Misuse, match="host"):
        refused("ssh", host=host)


def test_an_unknown_option_is_misuse():
    with pytest.raises(Misuse, match="password"):
        refused("ssh", host="127.0.0.1", password="secret")
