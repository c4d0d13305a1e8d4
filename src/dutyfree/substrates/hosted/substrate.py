"""`HostedSubstrate`: a vendor's machines as sandboxes, by an API call per action or by our agent on one stream.

Nothing is left behind: cancelled while a machine starts, that one is ended once the vendor has told its id; closing
ends the rest; of a client that was killed, the vendor's own clock ends them, and the next client's sweep before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

from dutyfree.core.contract import Capabilities, Sandbox
from dutyfree.core.errors import DutyfreeError, Misuse
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.driver.owner import OWNER_LABEL, is_orphan, owner_mark
from dutyfree.substrates.api.sandbox import API_NOTES, ApiSandbox
from dutyfree.substrates.boot import Birth
from dutyfree.substrates.hosted.agent import boot_by_exec
from dutyfree.substrates.hosted.keeper import TTL_S, Keeper
from dutyfree.substrates.hosted.vendor import Machine, Vendor
from dutyfree.substrates.owning import OwningSubstrate

NAME_LABEL = "dutyfree.name"

_NO_STREAM = "not offered over an API call per command"
HOSTED_NOTES = {
    **API_NOTES,
    "dispatch": "the command's own time is told by the sandbox's shell, where that is bash",
    "stream": _NO_STREAM,
    "terminal": _NO_STREAM,
    "shell": _NO_STREAM,
    "forward": _NO_STREAM,
}
"""What no hosted driver offers, or offers in part; for their capabilities."""


class HostedSubstrate(OwningSubstrate):
    """Machines of one account. Handed out after its first sweep: see `swept`."""

    agent_inside: str | None = None
    """Where every machine has our agent; None: it is sent."""

    def __init__(self, name: str, vendor: Vendor, capabilities: Capabilities, ttl_s: float = TTL_S) -> None:
        super().__init__(name)
        self.version = vendor.version
        self.capabilities = capabilities
        self._vendor = vendor
        self._keeper = Keeper(ttl_s)

    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        marks = {OWNER_LABEL: owner_mark(), NAME_LABEL: name}
        machine = await self._started(spec, marks)
        if self._closed:
            await finish(machine.end())
            raise Misuse("the substrate was closed meanwhile", driver=self.name)

        async def remove() -> None:
            self._keeper.drop(name)
            try:
                await machine.end()
            finally:
                self._boxes = {one for one in self._boxes if one.id != name}

        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=remove,
            defaults=machine.defaults, start_ns=start_ns,
        )  # fmt: skip
        if self.capabilities.dispatch == "agent":
            return await self._with_agent(birth, machine)
        ready_ns = birth.created()  # the vendor answers once it takes commands
        birth.timeline.add("ready", ready_ns, ready_ns)
        box = ApiSandbox(birth, machine.execute, self._floor)
        self._keeper.keep(name, machine, spec.lifetime_s, box.lose)
        return box

    async def _with_agent(self, birth: Birth, machine: Machine) -> Sandbox:
        birth.created()
        box = await boot_by_exec(birth, machine.execute, self.agent_inside)
        # Nobody is told of its end by the clock: the agent's stream ends with the machine.
        self._keeper.keep(birth.id, machine, birth.spec.lifetime_s, lambda _: None)
        return box

    async def sweep(self) -> list[str]:
        """End what dead owners of this machine left at the vendor's; the ids."""
        marked = await self._vendor.marked(OWNER_LABEL)
        orphans = [one for one, mark in marked.items() if is_orphan(mark)]
        for one in orphans:
            await self._vendor.end(one)
        return orphans

    async def close(self) -> None:
        """End what is left, drop the connections."""
        if self._closed:
            return
        try:
            await super().close()
        except ExceptionGroup as failures:  # each of them was tried
            raise failures.exceptions[0] from None
        finally:
            await self._keeper.close()
            await self._vendor.close()

    async def _started(self, spec: Spec, marks: Mapping[str, str]) -> Machine:
        """A request on its way cannot be taken back: cancelled, the machine is awaited and ended."""
        starting = asyncio.ensure_future(self._vendor.start(spec, marks, self._keeper.first_s(spec.lifetime_s)))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await finish(_undo(starting))
            raise


Kind = TypeVar("Kind", bound=HostedSubstrate)


async def swept(substrate: Kind) -> Kind:
    """A substrate just made, after its first sweep, which also shows whether the account is one; closed if that fails."""
    try:
        await substrate.sweep()
    except BaseException:
        await finish(substrate.close())
        raise
    return substrate


async def _undo(starting: asyncio.Future[Machine]) -> None:
    try:
        machine = await starting
    except DutyfreeError:
        return
    await machine.end()
