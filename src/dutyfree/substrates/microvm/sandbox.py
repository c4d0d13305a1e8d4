"""`MicrovmSandbox`: a clone that can be copied while it runs, processes and all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dutyfree.core.contract import Sandbox, Snapshot
from dutyfree.core.pending import Pending
from dutyfree.core.spec import Spec
from dutyfree.guest.argument import forks
from dutyfree.guest.sandbox import AgentSandbox

TakeSnapshot = Callable[[AgentSandbox, str | None, Spec], Awaitable[Snapshot]]
MakeFork = Callable[[AgentSandbox, int], Awaitable[Sequence[Pending[Sandbox]]]]


class MicrovmSandbox(AgentSandbox):
    """A clone whose snapshots are memory: processes go on in everything that starts from one."""

    take_snapshot: TakeSnapshot
    """Set by the substrate, like the next."""
    make_fork: MakeFork

    async def snapshot(self, key: str | None = None, *, spec: Spec | None = None) -> Snapshot:
        """Files, memory and processes as they are now."""
        return await self.take_snapshot(self, key, spec or self.spec)

    async def fork(self, n: int) -> Sequence[Pending[Sandbox]]:
        """`n` copies that go on from here."""
        return await self.make_fork(self, forks(n))
