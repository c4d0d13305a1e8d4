"""`SharedSuite`: the whole contract where a sandbox takes long to come and go.

Topics that leave a sandbox as good as new run in one that they share, each test with a scratch directory of its own;
all others, and every test that asks for a particular sandbox, get theirs as ever. A test that loses the shared one
fails, and so do those after it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.pending import Pending
from dutyfree.core.spec import Spec
from dutyfree.substrates.registry import connect
from dutyfree.testing.argument import ArgumentSuite
from dutyfree.testing.base import Suite, Test
from dutyfree.testing.ending import EndingSuite
from dutyfree.testing.file import FileSuite, LinkedFileSuite
from dutyfree.testing.forward import ForwardSuite
from dutyfree.testing.output import OutputSuite
from dutyfree.testing.shell import ShellSuite
from dutyfree.testing.stream import StreamSuite
from dutyfree.testing.transfer import TransferSuite

TIDY = (
    ArgumentSuite, EndingSuite, FileSuite, ForwardSuite, LinkedFileSuite, OutputSuite, ShellSuite, StreamSuite,
    TransferSuite,
)  # fmt: skip
"""Topics after which a sandbox is as good as new, apart from what is in the scratch directory."""

_THREADS = 4


class Commons:
    """A loop, a substrate on it and a sandbox of that, for the tests of one class."""

    def __init__(self, connect: Pending[Substrate], image: str) -> None:
        self.runner = asyncio.Runner()
        self.runner.get_loop().set_default_executor(_executor())
        self.substrate = self.runner.run(_awaited(connect))
        self.box: Sandbox = self.runner.run(_awaited(self.substrate.create(Spec(image=image))))
        self.numbers = itertools.count(1)

    async def lend(self) -> Sandbox:
        """The shared sandbox."""
        return self.box

    def close(self) -> None:
        """Give everything back."""
        try:
            self.runner.run(self.substrate.close())
        finally:
            self.runner.close()


@pytest.fixture(scope="class")
def commons(request: pytest.FixtureRequest) -> Iterator[Commons]:
    """Fixture that the tests of one class share; import it into a conftest."""
    kind = request.cls
    kind.options = {**kind.options, **(request.getfixturevalue(kind.engine) if kind.engine else {})}
    suite: SharedSuite = kind()
    made = Commons(suite.connect(), suite.image)
    try:
        yield made
    finally:
        made.close()


class SharedSuite(Suite):
    """Put it before `ContractSuite` among the bases."""

    options: ClassVar[dict[str, str]] = {}
    """Of the driver."""
    engine: ClassVar[str | None] = None
    """The fixture that starts what the driver needs, or skips, and gives further options."""
    restless: ClassVar[bool] = False
    """The substrate acts by itself while it is shared, as by renewing a lease: its connections come and go between tests."""
    shared: Commons | None = None
    _number = 0

    @pytest.fixture(autouse=True)
    def _shares(self, commons: Commons) -> None:
        self.shared = commons

    def connect(self) -> Pending[Substrate]:
        """The driver, with the options."""
        return connect(self.substrate_name, **self.options)

    def conduct(self, test: Test, topic: type[Suite]) -> None:
        """In the common loop if the topic is tidy."""
        if topic not in TIDY or self.shared is None:
            super().conduct(test, topic)
            return
        self._number = next(self.shared.numbers)
        self.shared.runner.run(self.on(self.shared.substrate, test))

    def scratch(self, box: Sandbox) -> str:
        """One for each test."""
        return f"{super().scratch(box)}-{self._number}"

    def box(self, **fields: Any) -> Pending[Sandbox]:
        """The shared one, unless it is another substrate's or a particular one that is asked for."""
        if self.shared is None or self.substrate is not self.shared.substrate or fields:
            return super().box(**fields)
        return Pending(self.shared.lend(), _keep)


def _executor() -> ThreadPoolExecutor:
    """With all its threads started: one that came later would look like something a test left behind."""
    made = ThreadPoolExecutor(_THREADS)
    together = threading.Barrier(_THREADS)
    for ready in [made.submit(together.wait) for _ in range(_THREADS)]:
        ready.result()
    return made


async def _awaited(pending: Pending[Any]) -> Any:
    return await pending


async def _keep(box: Sandbox) -> None:
    del box
