"""dutyfree measures the infrastructure tax that coding-agent RL rollouts pay, and removes it.

    async with dutyfree.connect("native") as substrate:
        async with substrate.create(dutyfree.Spec(image="host")) as box:
            out = await box.run("pytest -q", timeout_s=60, cwd="/repo")

Everything public is here or in a module that is named in the documentation. Importing it does nothing else: each name's
module is imported when the name is used first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dutyfree.connection import connect
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
    from dutyfree.substrates.registry import drivers

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

_NAMES = {
    "connection": "connect",
    "core.contract": "Availability Capabilities Command Driver FileInfo Forward Process Sandbox Shell Snapshot Substrate TerminalSize",
    "core.egress": "Egress",
    "core.errors": "DriverError DutyfreeError Misuse SandboxLost Saturated StageFailed Unavailable Unsupported",
    "core.outcome": "CommandFailed Ending Outcome",
    "core.spec": "Limits Spec",
    "core.stage": "Commands Files Repository",
    "core.timeline": "Span Timeline",
    "reward.verify": "Check Verification verify",
    "substrates.registry": "drivers",
}
"""Each module, and the public names that are its own."""

_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - not before it is needed

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _MODULES.keys())
