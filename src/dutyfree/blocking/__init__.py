"""dutyfree for callers without an event loop: the same names, the same arguments, the same results.

    from dutyfree import blocking as dutyfree

    with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(image="host")) as box:
        print(box.run("echo hello").text())

Nothing is implemented twice: each method runs the asynchronous call on one loop that the connection owns, and waits for
it. Safe from many threads. A KeyboardInterrupt in the caller (or what else a signal handler raises) cancels the action,
waits until that is done, and goes on its way. Values and errors are those of `dutyfree`. `open_pool`, `Pool` and
`Lease` are those of `dutyfree.warm`.

A process that is forked while a connection is open must connect for itself: what it inherited raises `Misuse`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dutyfree import (
    Availability,
    Capabilities,
    Check,
    Command,
    CommandFailed,
    Commands,
    Driver,
    DriverError,
    DutyfreeError,
    Egress,
    Ending,
    FileInfo,
    Files,
    Limits,
    Misuse,
    Outcome,
    Repository,
    SandboxLost,
    Saturated,
    Span,
    Spec,
    StageFailed,
    TerminalSize,
    Timeline,
    Unavailable,
    Unsupported,
    Verification,
    __version__,
    drivers,
)
from dutyfree.blocking.connect import connect, open_pool, verify
from dutyfree.blocking.mirror import Sandbox, Substrate
from dutyfree.blocking.part import Forward, Process, Shell, Snapshot

if TYPE_CHECKING:
    from dutyfree.blocking.pool import Lease, Pool

__all__ = [
    "Availability",
    "Capabilities",
    "Check",
    "Command",
    "CommandFailed",
    "Commands",
    "Driver",
    "DriverError",
    "DutyfreeError",
    "Egress",
    "Ending",
    "FileInfo",
    "Files",
    "Forward",
    "Lease",
    "Limits",
    "Misuse",
    "Outcome",
    "Pool",
    "Process",
    "Repository",
    "Sandbox",
    "SandboxLost",
    "Saturated",
    "Shell",
    "Snapshot",
    "Span",
    "Spec",
    "StageFailed",
    "Substrate",
    "TerminalSize",
    "Timeline",
    "Unavailable",
    "Unsupported",
    "Verification",
    "__version__",
    "connect",
    "drivers",
    "open_pool",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in ("Lease", "Pool"):
        from dutyfree.blocking import pool  # noqa: PLC0415 - only who has a pool needs its module

        return getattr(pool, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
