"""dutyfree measures the infrastructure tax that coding-agent RL rollouts pay, and removes it.

    async with dutyfree.connect("native") as substrate:
        async with substrate.create(dutyfree.Spec(image="host")) as box:
            out = await box.run("pytest -q", timeout_s=60, cwd="/repo")

Everything public is here or in a module that is named in the documentation. Importing it does nothing else.
"""

from __future__ import annotations

from dutyfree.core.contract import (
    Availability,
    Capabilities,
    Command,
    Driver,
    FileInfo,
    Forward,
    Process,
    Sandbox,
    Shell,
    Snapshot,
    Substrate,
    TerminalSize,
)
from dutyfree.core.egress import Egress
from dutyfree.core.errors import (
    DriverError,
    DutyfreeError,
    Misuse,
    SandboxLost,
    Saturated,
    StageFailed,
    Unavailable,
    Unsupported,
)
from dutyfree.core.outcome import CommandFailed, Ending, Outcome
from dutyfree.core.spec import Limits, Spec
from dutyfree.core.stage import Commands, Files, Repository
from dutyfree.core.timeline import Span, Timeline
from dutyfree.reward.verify import Check, Verification, verify
from dutyfree.substrates.registry import connect, drivers

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
    "Limits",
    "Misuse",
    "Outcome",
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
    "verify",
]

__version__ = "0.1.0"
