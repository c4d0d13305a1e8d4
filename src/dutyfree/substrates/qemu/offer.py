"""Capabilities of virtual machines, and the words on their accelerator, for every driver of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from dutyfree.core.contract import Availability, Capabilities, Dispatch
from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.core.spec import Spec, Storage
from dutyfree.image.store import Store
from dutyfree.substrates.api.sandbox import API_NOTES
from dutyfree.substrates.engine.options import check_options
from dutyfree.substrates.qemu.kvm import judge
from dutyfree.substrates.qemu.plan import Accel
from dutyfree.substrates.qemu.workshop import ENABLE, obstacle, qemu_version

ROOM_BYTES = 128 << 20
"""What a machine has above the sandbox's own limit: its kernel and our processes."""

_ACCELS = ("auto", "kvm", "tcg")

_LIMIT_NOTE = (
    "memory and processors are the machine's own; what is finer is held by control groups and the upper filesystem of its "
    "own kernel, so that its root can lift those"
)


def machine_capabilities(dispatch: Dispatch, accel: Accel, storages: frozenset[Storage]) -> Capabilities:
    """Capabilities of our virtual machines in a dispatch mode."""
    agent = dispatch == "agent"
    notes = {
        "limits": _LIMIT_NOTE,
        "networks": "a machine has no network but loopback; the machine's own one is another kernel's",
    }
    if accel == "tcg":
        notes["isolation"] = "accel=tcg: a kernel of its own in software emulation, without hardware virtualisation"
    return Capabilities(
        isolation="vm" if accel == "kvm" else "kernel",
        dispatch=dispatch,
        limits=frozenset({"cpus", "memory_bytes", "pids", "disk_bytes", "files"}),
        networks=frozenset({"none"}),
        storages=storages,
        users=True,
        stream=agent,
        terminal=agent,
        shell=agent,
        forward=agent,
        process_tree=agent,
        notes=notes if agent else {**notes, **API_NOTES},
    )


def memory_for(spec: Spec, default_bytes: int) -> int:
    """The machine's memory, in whole MiB: the sandbox's limit and room for the kernel, or the default if that is more."""
    wanted = (spec.limits.memory_bytes or 0) + ROOM_BYTES
    return max(default_bytes, -(-wanted // (1 << 20)) << 20)


def cpus_for(spec: Spec) -> int:
    """Whole processors; a fraction of the last is held by the guest's scheduler."""
    return max(1, math.ceil(spec.limits.cpus or 1))


def check_writes(spec: Spec, driver: str) -> None:
    """A disk of its own is as large as it is: bounds are offered for memory only."""
    limits = spec.limits
    if spec.storage == "disk" and (limits.disk_bytes is not None or limits.files is not None):
        raise Unsupported("limits.disk_bytes and limits.files are enforced with storage 'memory' only", driver=driver)


def accel_of(options: Mapping[str, str], known: tuple[str, ...], driver: str) -> str:
    """The accelerator asked for, all options checked."""
    check_options(options, known, driver)
    accel = options.get("accel", "auto")
    if accel not in _ACCELS:
        raise Misuse(f"must be {' or '.join(_ACCELS)}, not {accel!r}", field="accel", driver=driver)
    return accel


def look(offered: Capabilities) -> Availability:
    """A driver's line of `doctor`; `offered` is what it has with tcg."""
    why = obstacle(Store.default().root)
    if why is not None:
        return Availability(available=False, reason=why, enable=ENABLE)
    found = judge()
    accel: Accel = "kvm" if found.usable else "tcg"
    capabilities = offered
    if found.usable:
        notes = {name: note for name, note in offered.notes.items() if name != "isolation"}
        capabilities = replace(offered, isolation="vm", notes=notes)
    return Availability(
        available=True,
        reason=f"accel={accel}: {found.reason}",
        version=f"{qemu_version()} accel={accel}",
        capabilities=capabilities,
        emulated=not found.usable,
    )
