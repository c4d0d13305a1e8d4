"""Driver `gvisor`, and the command lines of runsc.

gvisor                   our agent is the main process, on a socket of its own
gvisor?dispatch=api      `runsc exec` for every action · gvisor?platform=ptrace  instead of systrap
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dutyfree.core.contract import Capabilities, Dispatch
from dutyfree.core.spec import Spec
from dutyfree.substrates.oci.driver import RuntimeDriver
from dutyfree.substrates.oci.program import runtime_capabilities
from dutyfree.substrates.oci.substrate import Flags


class GvisorDriver(RuntimeDriver):
    """The entry point's object."""

    name = "gvisor"
    summary = "OCI bundles on runsc: a kernel of its own, in user space"
    variants = ("platform", ("systrap", "ptrace", "kvm"))
    overlays = True

    def program(self, variant: str) -> str:  # noqa: ARG002 - one program has all platforms
        """Always runsc."""
        return "runsc"

    def flags(self, variant: str) -> Flags:
        """Writes go to the kernel's own memory, or to a file in the sandbox's directory."""

        def flags(spec: Spec, writes: Path) -> Sequence[str]:
            medium = "memory" if spec.storage == "memory" else f"dir={writes}"
            return (
                f"--platform={variant}",
                f"--network={spec.network}",
                "--ignore-cgroups",
                f"--overlay2=root:{medium}",
            )

        return flags

    def offered(self, dispatch: Dispatch) -> Capabilities:
        """A kernel of its own; no limits."""
        return runtime_capabilities(
            dispatch,
            isolation="kernel",
            limits=frozenset(),
            notes={
                "limits": "runsc is run without cgroups, so it bounds nothing itself",
                "snapshot": "files are in its own memory, and a checkpoint holds the agent's open stream, which a copy lacks",
                "fork": "as snapshot",
            },
        )


driver = GvisorDriver()
