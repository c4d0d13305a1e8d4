"""From a spec's limits to a machine's size: whole processors, whole MiB. What a machine cannot be made as small as is refused."""

from __future__ import annotations

from dutyfree.core.errors import Unsupported
from dutyfree.core.spec import Spec

LEAST_MIB = 128
"""Below that a kernel and its first processes do not fit."""

DEFAULT_MIB = 2048
"""Where the spec leaves it open: room for what the workloads of the meter do. Memory that is not touched costs nothing."""

MIB = 1 << 20

LIMIT_NOTE = (
    f"processors are whole ones, memory is the whole machine's and at least {LEAST_MIB} MiB; "
    "the library has no call that bounds processes or files of a sandbox"
)


def cpus_of(spec: Spec, driver: str) -> int:
    """How many; 1 unless asked otherwise."""
    cpus = spec.limits.cpus or 1
    if cpus != int(cpus):
        raise Unsupported(f"limits.cpus: a machine has whole processors, not {cpus:g}", driver=driver)
    return int(cpus)


def memory_mib_of(spec: Spec, driver: str) -> int:
    """The machine's memory: never more than the limit."""
    limit = spec.limits.memory_bytes
    if limit is None:
        return DEFAULT_MIB
    if limit < LEAST_MIB * MIB:
        what = f"limits.memory_bytes: a machine needs {LEAST_MIB} MiB, not {limit / MIB:g}"
        raise Unsupported(what, driver=driver)
    return limit // MIB
