"""What a vendor has behind its wire: places where commands run and files are, each with a time to live.

A place is a `native` sandbox, so that what a test does in it stays in it. Commands go on when nobody listens any more, as
they do at a vendor's.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dutyfree.core.contract import Process, Sandbox, StreamName, Substrate
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Limits, Spec

WAITING_PIECES = 16
"""Output that a listener has not taken yet; a command that says more waits for it."""

Piece = tuple[StreamName, bytes]


class Job:
    """A command that runs, and goes on whether or not somebody listens."""

    def __init__(self, number: int, process: Process) -> None:
        self.number = number
        self._process = process
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue(WAITING_PIECES)
        self._left = asyncio.Event()
        self._task = asyncio.create_task(self._work())

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Its output as it comes, for one listener; whoever leaves early leaves for good."""
        try:
            while piece := await self._pieces.get():
                yield piece
        finally:
            self.leave()

    def leave(self) -> None:
        """Nobody listens: what comes is dropped."""
        self._left.set()
        with suppress(asyncio.QueueEmpty):
            while True:
                self._pieces.get_nowait()

    async def wait(self) -> Outcome:
        """How it ended; `SandboxLost` if its place did."""
        return await asyncio.shield(self._task)

    async def kill(self) -> None:
        """The whole tree."""
        await self._process.kill()

    async def feed(self, data: bytes) -> None:
        """Input."""
        await self._process.write(data)

    async def close_input(self) -> None:
        """Its end."""
        await self._process.close_stdin()

    async def settle(self) -> None:
        """After the end of its place: wait until nothing of it runs here."""
        self.leave()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()

    async def _work(self) -> Outcome:
        try:
            async for piece in self._process:
                if not self._left.is_set():
                    await self._pieces.put(piece)
            return await self._process.wait()
        finally:
            if not self._left.is_set():
                await self._pieces.put(None)


@dataclass(kw_only=True, slots=True)
class Place:
    """One sandbox of the vendor."""

    id: str
    box: Sandbox
    image: str
    marks: Mapping[str, str]
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    started_s: float = field(default_factory=time.time)
    ends_s: float = 0.0
    jobs: dict[int, Job] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(100))
    timer: asyncio.TimerHandle | None = None

    async def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = False,
    ) -> Job:
        """Begin a command. Raises `Misuse` for a user or place nobody knows."""
        given = None if stdin else b""
        process = await self.box.start(argv, env=env, cwd=cwd, user=user, stdin=given, background=True)
        number = next(self.numbers)
        self.jobs[number] = Job(number, process)
        return self.jobs[number]


class Places:
    """All of one vendor's account."""

    def __init__(self, substrate: Substrate, images: Sequence[str]) -> None:
        self._substrate = substrate
        self.images = frozenset(images)
        """The names that the vendor knows; every one is this machine's own programs."""
        self.found: dict[str, Place] = {}
        self._endings: set[asyncio.Task[None]] = set()

    async def open(
        self,
        image: str,
        marks: Mapping[str, str],
        ttl_s: float,
        *,
        network: bool = False,
        limits: Limits | None = None,
    ) -> Place:
        """A new one; KeyError if the vendor knows no such image."""
        if image not in self.images:
            raise KeyError(image)
        box = await self._substrate.create(Spec(network="host" if network else "none", limits=limits or Limits()))
        place = Place(id=secrets.token_hex(10), box=box, image=image, marks=dict(marks))
        self.found[place.id] = place
        self.extend(place, ttl_s)
        return place

    def extend(self, place: Place, ttl_s: float) -> None:
        """It ends this long from now."""
        if place.timer is not None:
            place.timer.cancel()
        place.ends_s = time.time() + ttl_s
        place.timer = asyncio.get_running_loop().call_later(ttl_s, self._expire, place)

    async def end(self, place: Place) -> None:
        """Now."""
        self.found.pop(place.id, None)
        if place.timer is not None:
            place.timer.cancel()
        await place.box.destroy()
        for job in list(place.jobs.values()):
            await job.settle()

    async def close(self) -> None:
        """End them all."""
        for place in list(self.found.values()):
            await self.end(place)
        if self._endings:
            await asyncio.wait(self._endings)

    def _expire(self, place: Place) -> None:
        ending = asyncio.create_task(self.end(place))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
