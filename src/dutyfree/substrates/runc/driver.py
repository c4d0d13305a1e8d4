"""Driver `runc`, on the program runc, or crun where that is asked for.

runc                  our agent is the main process, on a socket of its own
runc?dispatch=api     `runc exec` for every action · runc?program=crun  another runtime with the same verbs
"""

from __future__ import annotations

from dutyfree.core.contract import Capabilities, Dispatch
from dutyfree.substrates.oci.driver import RuntimeDriver
from dutyfree.substrates.oci.program import runtime_capabilities
from dutyfree.substrates.oci.substrate import Flags


class RuncDriver(RuntimeDriver):
    """The entry point's object."""

    name = "runc"
    summary = "OCI bundles straight on runc: containers without an engine"
    variants = ("program", ("runc", "crun"))

    def program(self, variant: str) -> str:
        """As asked."""
        return variant

    def flags(self, variant: str) -> Flags:  # noqa: ARG002 - both take the same
        """None of its own."""
        return lambda _spec, _writes: ()

    def offered(self, dispatch: Dispatch) -> Capabilities:
        """Namespaces and cgroups."""
        return runtime_capabilities(
            dispatch,
            isolation="namespace",
            limits=frozenset({"cpus", "memory_bytes", "pids"}),
            notes={
                "limits": "the overlay's upper directory has no quota for disk_bytes and files",
                "snapshot": "a runtime has no images of its own to commit to; docker, podman and native have",
                "fork": "as snapshot",
            },
        )


driver = RuncDriver()
