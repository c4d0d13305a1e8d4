"""`Suite`: what the topics of the contract suite share. Tests are `async` methods; each gets a substrate of its own.

A behaviour that a substrate does not offer is checked all the same: asking for it must raise `Unsupported`. A behaviour
that it should have and does not is a row in `gaps`: a strict expected failure, with its reason.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from dutyfree.core.contract import Sandbox, Shell, Substrate
from dutyfree.core.errors import Unsupported
from dutyfree.core.pending import Pending
from dutyfree.core.spec import Limits, Spec
from dutyfree.substrates.registry import connect

PATIENCE_S = 20.0
"""How long a condition may take to come true before a test gives up; no test depends on how soon it does."""


Test = Callable[[], Awaitable[None]]


class NotOffered(Exception):
    """Raised by a test's helper once it has seen that the substrate declines as it must: the test is done."""


class Suite:
    """Inherit from a topic, or from `ContractSuite`, and say which substrate it is."""

    substrate_name: ClassVar[str]
    """What `dutyfree.connect` takes."""
    image: ClassVar[str] = "host"
    gaps: ClassVar[Mapping[str, str]] = {}
    """Test name to the reason why it fails on this substrate."""
    endless: ClassVar[frozenset[str]] = frozenset()
    """Of those, the ones that would wait long for what does not come: they are not run at all."""
    substrate: Substrate

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _runnable(test, cls))

    @pytest.fixture(autouse=True)
    def _known_gap(self, request: pytest.FixtureRequest) -> None:
        name = request.node.originalname
        reason = self.gaps.get(name)
        if reason:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True, run=name not in self.endless))

    def connect(self) -> Pending[Substrate]:
        """The substrate under test; override it for one that has no registered name."""
        return connect(self.substrate_name)

    def conduct(self, test: Test, topic: type[Suite]) -> None:
        """Run one test of a topic; override it for tests that share something."""
        del topic
        asyncio.run(self.with_substrate(test))

    async def with_substrate(self, test: Test) -> None:
        """The test on a substrate of its own."""
        async with self.connect() as substrate:
            await self.on(substrate, test)

    async def on(self, substrate: Substrate, test: Test) -> None:
        """The test on a substrate that is there."""
        self.substrate = substrate
        with suppress(NotOffered):
            await test()

    def scratch(self, box: Sandbox) -> str:
        """A directory inside that the tests may fill; override it where absolute paths are shared by sandboxes."""
        del box
        return "/tmp/contract"

    def spec(self, **fields: Any) -> Spec:
        """A spec this substrate accepts, with the fields a test is about."""
        return Spec(**{"image": self.image, **fields})

    def box(self, **fields: Any) -> Pending[Sandbox]:
        """A fresh sandbox."""
        return self.substrate.create(self.spec(**fields))

    async def limited(self, **limits: float) -> Sandbox:
        """A sandbox with limits; or, where one is not enforced, the refusal."""
        missing = set(limits) - self.substrate.capabilities.limits
        wanted = self.box(limits=Limits(**limits))  # type: ignore[arg-type]
        if missing:
            await declines(lambda: wanted)
        return await wanted

    def isolated(self) -> None:
        """Go on only if the substrate separates its sandboxes at all: one that declares `none` promises nothing."""
        if self.substrate.capabilities.isolation == "none":
            raise NotOffered("isolation")


async def declines(call: Callable[[], Awaitable[object]]) -> None:
    """The call raises `Unsupported`, and with that the test is done."""
    with pytest.raises(Unsupported):
        await call()
    raise NotOffered


async def shell_of(box: Sandbox) -> Shell:
    """A shell, or the refusal."""
    if not box.capabilities.shell:
        await declines(box.shell)
    return await box.shell()


async def streams(box: Sandbox) -> None:
    """Go on only if the substrate streams."""
    if not box.capabilities.stream:
        await declines(lambda: box.start(["true"]))


async def is_gone(box: Sandbox, pid: int) -> bool:
    """No such process inside, or only its remains; waits for it a while, as a kill takes its time."""
    script = 'state=$(sed -n "s/^State:[[:space:]]*//p" /proc/$0/status 2>/dev/null); case "$state" in ""|Z*|X*) ;; *) exit 9; esac'
    clock = asyncio.get_running_loop()
    end = clock.time() + PATIENCE_S / 4
    while (await box.run(["sh", "-c", script, str(pid)])).exit_code == 9:
        if clock.time() > end:
            return False
    return True


async def exists(box: Sandbox, path: str) -> bool:
    """Something is at that path."""
    try:
        await box.stat(path, follow=False)
    except FileNotFoundError:
        return False
    return True


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes; the asking itself is what paces it."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - the sandbox can only be asked, it does not tell
            await asyncio.sleep(0)


def _runnable(test: Callable[..., Awaitable[None]], topic: type[Suite]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: Suite, **fixtures: object) -> None:
        self.conduct(lambda: test(self, **fixtures), topic)

    return run
