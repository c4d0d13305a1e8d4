"""`PodSubstrate`: sandboxes that are pods, whoever makes them. Held by one exec call, acted in by either dispatch mode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from dutyfree.core.contract import Capabilities, Dispatch, Sandbox
from dutyfree.core.errors import Unavailable
from dutyfree.core.pending import finish
from dutyfree.driver.agent import agent_program
from dutyfree.image.pack import reference
from dutyfree.substrates.boot import Birth, boot_agent
from dutyfree.substrates.kubernetes.client import DRIVER, Client
from dutyfree.substrates.kubernetes.manifest import HOLD, INSIDE
from dutyfree.substrates.kubernetes.owner import Owner
from dutyfree.substrates.kubernetes.pod import GREETING, Pod
from dutyfree.substrates.kubernetes.stream import AgentStream, Channels
from dutyfree.substrates.owning import OwningSubstrate


class PodSubstrate(OwningSubstrate):
    """A driver implements `_make`: it says how a pod is made, and boots it by `_boot`."""

    def __init__(
        self, name: str, client: Client, owner: Owner, *, dispatch: Dispatch, repository: str, version: str,
        capabilities: Capabilities,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.version = version
        self.capabilities = capabilities
        self._client = client
        self._owner = owner
        self._repository = repository
        self._agent = agent_program(name).read_bytes() if dispatch == "agent" else None

    async def sweep(self) -> list[str]:
        """Remove what dead owners left; the names of their Leases."""
        return await self._owner.sweep()

    async def close(self) -> None:
        """Destroy what is left, give up the Lease, drop the connections."""
        if self._closed:
            return
        async with AsyncExitStack() as stack:  # each step, whatever became of the one before
            stack.push_async_callback(self._client.close)
            stack.push_async_callback(self._owner.release)
            stack.push_async_callback(self._leave)
            await super().close()

    async def _leave(self) -> None:
        """Give back what is no sandbox."""

    async def _find_image(self, name: str) -> str:
        """The nodes' reference: names of our store come first, then the cluster's own."""
        if name in ("host", "bench") or name.startswith("/") or self._store.named(name) is not None:
            return f"{self._repository}{reference(await self._image(name))}"
        return name

    async def _boot(
        self,
        birth: Birth,
        begin: Callable[[], Awaitable[Pod]],
        *,
        wait: bool,
        reached: Callable[[], None] | None = None,
    ) -> Sandbox:
        """From the request to a sandbox that can act. `birth.release` frees whatever `begin` made, also if that failed."""
        channels: Channels | None = None
        try:
            pod = await begin()
            channels, defaults = await pod.hold(self._script(), wait=wait, reached=reached)
            if self._agent is not None:
                await _send_program(channels, self._agent)
        except BaseException:
            if channels is not None:
                await finish(channels.close())
            await finish(birth.release())
            raise
        birth.defaults = replace(defaults, env=defaults.env if self._agent else {})
        if self._agent is None:
            return self._reached_by_exec(birth, pod.execute, None, _in_turn(channels.finish, birth.release))
        stream = AgentStream(channels)
        birth.release = _in_turn(stream.gone, birth.release)
        return await boot_agent(birth, stream)

    def _script(self) -> str:
        """Script of the exec call that holds the pod."""
        if self._agent is None:
            return self._holding(":", "cat")
        program = f"{INSIDE}/agent"
        return self._holding(f"head -c {len(self._agent)} >{program} && chmod 500 {program}", f"{program} --container")

    def _holding(self, steps: str, command: str) -> str:
        """Greet, take the steps, then run the command: with its end everything in the pod ends."""
        return f"{HOLD}; {GREETING}; {steps} && exec {command}"


async def _send_program(channels: Channels, program: bytes) -> None:
    try:
        await channels.send(program)
    except ConnectionError as error:
        raise Unavailable(f"its stream broke: {error}", driver=DRIVER, step="ready") from error


def _in_turn(*steps: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        for step in steps:
            await step()

    return work
