"""Interface of a vendor's module: `Vendor` starts and finds machines, a `Machine` is one of them.

Both raise the errors of `core.errors` only: a vendor's own go through `boundary.Boundary`, which also takes care that
none carries the credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dutyfree.core.spec import Spec
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink


class Machine(Protocol):
    """One sandbox at the vendor's, which runs."""

    defaults: ImageDefaults
    """What its image says of itself, as far as that is known."""

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """As `api.execution.Execute`: cancelled, it lets go of the process; `SandboxLost` if the machine is gone."""
        ...

    async def extend(self, ttl_s: float) -> None:
        """Let it live for this long from now; nothing where the vendor's clock cannot be set again."""
        ...

    async def end(self) -> None:
        """End it and wait until the vendor says so. Fine if it is gone."""
        ...


class Vendor(Protocol):
    """One account at a vendor's."""

    version: str
    """Of the SDK; and where it asks, if that is not the vendor's own address."""

    async def start(self, spec: Spec, marks: Mapping[str, str], ttl_s: float) -> Machine:
        """Start a machine that carries `marks` and that the vendor ends by itself after `ttl_s`.

        `spec` asks for nothing that the capabilities do not offer. Not cancelled half-way: the caller waits for it.
        """
        ...

    async def marked(self, key: str) -> Mapping[str, str]:
        """Every machine of the account that carries a mark of that key: its id, to the mark's value."""
        ...

    async def end(self, machine_id: str) -> None:
        """End a machine by its id. Fine if it is gone."""
        ...

    async def close(self) -> None:
        """Drop the connections."""
        ...
