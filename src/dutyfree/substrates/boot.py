"""Booting our agent in an isolated root that somebody else made: from a connected stream to a sandbox that can act.

A driver says how to start the agent's program and hands over the stream to it; greeting, defaults, the clocks and the
order of release are here. The program is one static file without any dependency, so it runs in every Linux root.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from dutyfree.core.contract import Capabilities
from dutyfree.core.errors import DriverError, SandboxLost, Unavailable
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import Timeline, now_ns
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.sandbox import Expiry
from dutyfree.guest.link import Link
from dutyfree.guest.sandbox import AgentSandbox
from dutyfree.guest.transport import Transport

HELLO_TIMEOUT_S = 60.0
"""For a substrate that is slow by nature on a machine in distress."""

Source = socket.socket | tuple[int, int] | Transport

Box = TypeVar("Box", bound=AgentSandbox)


@dataclass(kw_only=True, slots=True)
class Birth:
    """A sandbox on its way: what every driver knows of it before there is a stream."""

    driver: str
    id: str
    spec: Spec
    capabilities: Capabilities
    release: Callable[[], Awaitable[None]]
    """Ends everything the driver holds for it; called once, also if the boot fails after it was handed over."""
    failure: Callable[[], Awaitable[str | None]] | None = None
    """Asked why the sandbox died or never spoke; None: unknown."""
    defaults: ImageDefaults = field(default_factory=ImageDefaults)
    timeline: Timeline = field(default_factory=Timeline)
    start_ns: int = field(default_factory=now_ns)
    created_ns: int | None = None

    def created(self) -> int:
        """Mark the end of `create`, once: from here on it is about being ready."""
        if self.created_ns is None:
            self.created_ns = now_ns()
            self.timeline.add("create", self.start_ns, self.created_ns)
        return self.created_ns

    def waited(self) -> None:
        """Mark the end of a wait for somebody else's control plane, a span of its own: `ready` counts from here."""
        created_ns = self.created()
        self.created_ns = now_ns()
        self.timeline.add("orchestration", created_ns, self.created_ns)


async def boot_agent(
    birth: Birth,
    source: Source,
    *,
    hello_timeout_s: float = HELLO_TIMEOUT_S,
    kind: type[Box] = AgentSandbox,  # type: ignore[assignment] # type variables have no defaults before Python 3.13
) -> Box:
    """Take over the stream to an agent that was just started; on failure or cancellation everything is released."""
    created_ns = birth.created()
    link = Link.attach(source, sandbox=birth.id)
    fate = _Fate(birth)
    link.cause = fate.reason
    try:
        await _greet(birth, link, hello_timeout_s)
        box = kind(
            id=birth.id, spec=birth.spec, capabilities=birth.capabilities, timeline=birth.timeline, link=link,
            release=fate.release, env=birth.defaults.env, cwd=birth.defaults.cwd, user=birth.defaults.user,
        )  # fmt: skip
    except BaseException:
        link.close()
        await finish(birth.release())
        raise
    fate.watch(box)
    birth.timeline.add("ready", created_ns, now_ns())
    return box


async def _greet(birth: Birth, link: Link, timeout_s: float) -> None:
    try:
        await link.hello(timeout_s)
    except (SandboxLost, Unavailable) as error:
        why = await birth.failure() if birth.failure else None
        raise DriverError(
            f"the agent did not start: {why or error.message}", driver=birth.driver, step="ready"
        ) from error


class _Fate:
    """The reason of a sandbox's end, and its one release."""

    def __init__(self, birth: Birth) -> None:
        self._birth = birth
        self._why: str | None = None
        self._expiry: Expiry | None = None
        self._ending: asyncio.Task[None] | None = None

    def watch(self, box: AgentSandbox) -> None:
        """Start the clock of its lifetime; idleness is the agent's to notice."""

        def lose(why: str) -> None:
            self._why = why
            self._ending = asyncio.ensure_future(box.destroy())

        self._expiry = Expiry(self._birth.spec.lifetime_s, None, lose)

    async def reason(self) -> str | None:
        """For those whose calls were cut off."""
        if self._why is None and self._birth.failure is not None:
            self._why = await self._birth.failure()
        if self._why is None and self._birth.spec.idle_s is not None:
            return f"nothing was asked of it for {self._birth.spec.idle_s:g} s"
        return self._why

    async def release(self) -> None:
        """Called by the sandbox, once."""
        if self._expiry is not None:
            self._expiry.cancel()
        await self._birth.release()
