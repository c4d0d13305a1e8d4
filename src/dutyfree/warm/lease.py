"""`Lease`: the sandbox that a pool hands out. What is asked of it goes to the sandbox beneath; its end goes to the pool.

A lease's end is final for its holder: the sandbox may be reset and serve another, which this one can no longer reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from dutyfree.core.contract import Capabilities, Command, Forward, Process, Sandbox, Shell, Snapshot
from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.core.home import check_loop
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec, check_timeout
from dutyfree.core.timeline import Timeline
from dutyfree.driver.proxy import SandboxProxy

Origin = Literal["idle", "near", "created", "forked"]
"""idle: it waited in the state asked for · near: it waited in an earlier one · created: for this claim · forked."""


class Lease(SandboxProxy):
    """Made by `Pool`. `inner` is not the holder's any more once the lease has ended."""

    def __init__(
        self,
        box: Sandbox,
        *,
        id: str,  # noqa: A002 - the contract's own name
        spec: Spec,
        capabilities: Capabilities,
        origin: Origin,
        owner: str,
        take_back: Callable[[Lease], Awaitable[None]],
        redo: Callable[[Sandbox], Awaitable[None]] | None = None,
        adopt: Callable[[Lease, Pending[Sandbox]], Coroutine[Any, Any, Lease]],
    ) -> None:
        super().__init__(box)
        self.id = id
        self.spec = spec
        self.capabilities = capabilities
        self.timeline = Timeline()
        self.origin = origin
        self.owner = owner
        """Owner of the lease, as the claim named it."""
        self.uses = 0
        self.ttl_s: float | None = None
        """How long it lasts unless it is renewed, as the claim said."""
        self.key: str | None = None
        """What makes asking for it again harmless."""
        self.handed = False
        self.busy = 0
        """Calls under way."""
        self.entangled = False
        """Something was opened that outlives its call, so a reset could not take it back unseen."""
        self._shells: list[Shell] = []
        self._take_back = take_back
        self._redo = redo
        self._adopt = adopt
        self._note: Callable[[], None] | None = None
        """Told when a clock ends it."""
        self._why: str | None = None
        self._end: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def alive(self) -> bool:
        """The lease has not ended, and the sandbox lives."""
        return self._end is None and self.inner.alive

    @property
    def reusable(self) -> bool:
        """Say whether the sandbox may be reset: nothing of the holder's is attached, and others ask for its state."""
        settled = self._redo is None and self.origin != "forked"
        return settled and not self.busy and not self.entangled and not any(s.alive for s in self._shells)

    def expire(self, name: str, after_s: float, why: str, note: Callable[[], None] | None = None) -> None:
        """End it after a while; a clock of the same name starts anew."""
        self.stop_clock(name)
        self._note = note or self._note

        def over() -> None:
            if self._note is not None and self._end is None:
                self._note()
            self.lose(why)

        self._timers[name] = asyncio.get_running_loop().call_later(after_s, over)

    def renew(self, ttl_s: float) -> None:
        """The holder is still there: the lease now ends after `ttl_s` from here on. `Misuse` if it had no such end."""
        self._live()
        timer = self._timers.get("ttl")
        if timer is None:
            raise Misuse("this lease has no time to renew", field="ttl_s", driver="warm", sandbox=self.id)
        seconds = check_timeout("ttl_s", ttl_s)
        assert seconds is not None  # noqa: S101 - not None was given
        self.expire("ttl", seconds, f"its lease of {seconds:g} s was over")

    def stop_clock(self, name: str) -> None:
        """Without a clock it ends when its holder ends it."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    async def run(self, command: Command, **options: Any) -> Outcome:
        """Run a command to its end."""
        return await super().run(command, **self._completed(options))

    async def start(self, command: Command, **options: Any) -> Process:
        """Give a command its `Process`."""
        self.entangled = True
        return await super().start(command, **self._completed(options))

    async def shell(self, **options: Any) -> Shell:
        """Open a persistent shell."""
        shell = await super().shell(**self._completed(options))
        self._shells.append(shell)
        return shell

    async def expose(self, port: int) -> Forward:
        """Relay a port of the host's loopback to `port` inside."""
        self.entangled = True
        return await super().expose(port)

    async def provide(self, port: int, address: str | tuple[str, int]) -> Forward:
        """Listen on `port` inside; relay to `address`."""
        self.entangled = True
        return await super().provide(port, address)

    async def snapshot(self, key: str | None = None, *, spec: Spec | None = None) -> Snapshot:
        """Save the files as they are now. What the holder's spec says is kept, which the sandbox beneath does not know."""
        with self._using() as box:
            return await box.snapshot(key, spec=spec or self.spec)

    async def fork(self, n: int) -> Sequence[Pending[Sandbox]]:
        """`n` leases that start from this one's present state, each in a place of the pool that it waits for when awaited."""
        with self._using() as box:
            return [Pending(self._adopt(self, one), _destroy) for one in await box.fork(n)]

    async def reset(self) -> None:
        """Return to the state at creation: stages that were run in it for this lease are run again."""
        with self._using() as box, self.timeline.span("reset"):
            await box.reset()
            if self._redo is not None:
                await self._redo(box)

    async def destroy(self) -> None:
        """End the lease, and everything that its holder started, and wait until that is gone."""
        check_loop(self._home)
        self.lose("it was destroyed")
        if self._end is not None:
            await finish(asyncio.shield(self._end))

    def lose(self, why: str) -> None:
        """Begin to end it; calls from now on raise `SandboxLost` saying why."""
        if self._end is None:
            self._why = why
            for name in list(self._timers):
                self.stop_clock(name)
            self._end = asyncio.ensure_future(self._finish_end())

    async def _finish_end(self) -> None:
        with self.timeline.span("destroy"):
            await self._take_back(self)

    def _live(self) -> Sandbox:
        if self._why is not None:
            raise SandboxLost(f"the sandbox is gone: {self._why}", driver="warm", sandbox=self.id)
        return self.inner

    @contextmanager
    def _using(self) -> Iterator[Sandbox]:
        box = self._live()
        self.busy += 1
        try:
            yield box
        except SandboxLost as error:
            raise self._explained(error) from None
        finally:
            self.busy -= 1

    def _explained(self, error: SandboxLost) -> SandboxLost:
        """The pool knows better why it ended, if it was the pool that ended it."""
        if self._why is None:
            return error
        return SandboxLost(f"the sandbox is gone: {self._why}", driver=error.driver, sandbox=self.id)

    def _acting(self, options: dict[str, Any]) -> dict[str, Any]:
        if self.spec.user is not None and options.get("user") is None:
            options["user"] = self.spec.user
        return options

    def _completed(self, options: dict[str, Any]) -> dict[str, Any]:
        """With what the holder's spec says, which may be more than the one the sandbox was made from."""
        spec, env = self.spec, options.get("env")
        for name, said in (("cwd", spec.cwd), ("user", spec.user)):
            if said is not None and options.get(name) is None:
                options[name] = said
        if spec.env and (env is None or isinstance(env, Mapping)):
            options["env"] = {**spec.env, **(env or {})}
        return options


async def _destroy(box: Sandbox) -> None:
    await box.destroy()
