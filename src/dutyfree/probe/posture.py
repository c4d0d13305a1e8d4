"""Probe 34: the whole view a sandboxed process has of itself, against what it should be.

The manifest below is the promise of the isolation class, not of one driver: a class with a kernel of its own is asked
only for what can be seen from outside.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dutyfree.core.contract import Substrate
from dutyfree.probe.canary import marked_processes
from dutyfree.probe.scene import need, shares_kernel, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

FORBIDDEN_CAPABILITIES = {
    2: "DAC_READ_SEARCH", 12: "NET_ADMIN", 13: "NET_RAW", 16: "SYS_MODULE", 17: "SYS_RAWIO", 18: "SYS_CHROOT",
    19: "SYS_PTRACE", 20: "SYS_PACCT", 21: "SYS_ADMIN", 22: "SYS_BOOT", 23: "SYS_NICE", 24: "SYS_RESOURCE",
    25: "SYS_TIME", 26: "SYS_TTY_CONFIG", 27: "MKNOD", 29: "AUDIT_WRITE", 30: "AUDIT_CONTROL", 32: "MAC_OVERRIDE",
    33: "MAC_ADMIN", 34: "SYSLOG", 35: "WAKE_ALARM", 36: "BLOCK_SUSPEND", 37: "AUDIT_READ", 38: "PERFMON", 39: "BPF",
    40: "CHECKPOINT_RESTORE",
}  # fmt: skip
"""Not even over the sandbox's own namespaces: each opens kernel code that builds and tests do not need."""

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
FILESYSTEMS = {
    "overlay",
    "tmpfs",
    "proc",
    "devpts",
    "sysfs",
    "mqueue",
    "ext4",
    "xfs",
    "btrfs",
    "devtmpfs",
    "squashfs",
    "erofs",
}
DEVICES = {
    "null", "zero", "full", "random", "urandom", "tty", "console", "fd", "stdin", "stdout", "stderr", "ptmx", "pts",
    "shm", "mqueue", "core",
}  # fmt: skip
INTERFACES = {"lo"}


async def posture(substrate: Substrate) -> Verdict:
    """Everything that differs from the manifest, in one line."""
    mark = f"posture{secrets.token_hex(8)}"
    async with stage(substrate) as box:
        said = (await box.attempt("posture")).said
        need(bool(said), "the attempt did not report")
        differences = list(_differences(said)) if shares_kernel(substrate) else []
        differences += await _outside(box.box, mark)
    return broke("; ".join(differences)) if differences else held("as the manifest says")


def _differences(said: dict[str, Any] | Any) -> Iterator[str]:
    yield from _privilege(said)
    yield from _separation(said)
    yield from _view(said)


def _privilege(said: Any) -> Iterator[str]:
    status = said["status"]
    owns_namespace = said["namespaces"]["user"] != _own("user")
    for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
        bits = int(status[name], 16)
        if bits and not owns_namespace:
            yield f"{name} holds capabilities over the host: {status[name]}"
        forbidden = [text for bit, text in FORBIDDEN_CAPABILITIES.items() if bits >> bit & 1]
        if forbidden:
            yield f"{name} holds {', '.join(forbidden)}"
    if status["Seccomp"] != "2":
        yield f"Seccomp is {status['Seccomp']}, not 2"
    if status["NoNewPrivs"] != "1":
        yield f"NoNewPrivs is {status['NoNewPrivs']}, not 1"
    for kind in ("uid_map", "gid_map"):
        # In an ordinary user's namespace the outer id is that user's: only the host's root must not be in the map.
        if any(outer <= 0 < outer + count for _, outer, count in said[kind]) and os.geteuid() == 0:
            yield f"{kind} holds the host's root"


def _separation(said: Any) -> Iterator[str]:
    shared = [name for name in NAMESPACES if said["namespaces"][name] in ("", _own(name))]
    if shared:
        yield f"shares the host's namespaces: {', '.join(shared)}"
    if said["descriptors"] != [0, 1, 2]:
        yield f"descriptors are {said['descriptors']}"
    peers = [mount["point"] for mount in said["mounts"] if "shared:" in mount["peers"]]
    if peers:
        yield f"mounts propagate: {', '.join(peers)}"
    extra = sorted(set(said["interfaces"]) - INTERFACES)
    if extra:
        yield f"network interfaces: {', '.join(extra)}"
    if said["limits"]["RLIMIT_CORE"][1] not in (0, 1):
        yield "may dump core"


def _view(said: Any) -> Iterator[str]:
    odd = sorted({mount["type"] for mount in said["mounts"]} - FILESYSTEMS)
    if odd:
        yield f"filesystems mounted: {', '.join(odd)}"
    loose = [
        mount["point"]
        for mount in said["mounts"]
        if mount["point"].startswith(("/sys", "/proc/sys", "/proc/irq", "/proc/bus"))
        and "rw" in mount["options"].split(",")
    ]
    if loose:
        yield f"writable: {', '.join(loose)}"
    devices = sorted(set(said["devices"]) - DEVICES)
    if devices:
        yield f"devices: {', '.join(devices)}"


async def _outside(box: Any, mark: str) -> list[str]:
    """Compare the host's view of a sandboxed process: not root, a filter, no capabilities that count here."""
    if not box.capabilities.stream:
        return []
    running = await box.start(["sh", "-c", "echo ready; read line", mark], stdin=None)
    try:
        async for _ in running:
            break
        return [fact for pid in marked_processes(mark) for fact in _facts_of(pid)]
    finally:
        await running.kill()
        await running.wait()


def _facts_of(pid: int) -> Iterator[str]:
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if os.geteuid() == 0 and "0" in fields["Uid"].split() + fields["Gid"].split():
        yield "runs as root of the host"
    if os.readlink(f"/proc/{pid}/ns/user") == _own("user") and int(fields["CapEff"], 16):
        yield "has capabilities over the host"


def _own(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{name}")


PROBES = (Probe(id=34, name="posture", group="escape", run=posture, harmless=True),)
