"""What kind of machine this is, so that results say where they hold, and unlike machines are not merged.

Reads /proc and /etc only. Names no user, host name or address: the machine's identity enters as a hash.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

_IDENTITY = ("kernel", "architecture", "cpu", "cpus", "memory_gib", "cgroup", "hypervisor")


def fingerprint() -> dict[str, Any]:
    """The host as plain data; `id` is equal for runs that may be merged."""
    facts: dict[str, Any] = {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "cgroup": _cgroup(),
        "hypervisor": "hypervisor" in _cpu_flags(),
        "distribution": _distribution(),
        "python": platform.python_version(),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "not reported",
        "load_1min": round(os.getloadavg()[0], 2),
    }
    identity = [str(facts[name]) for name in _IDENTITY] + [_first_line("/etc/machine-id")]
    facts["id"] = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    return facts


def steal_ns() -> int:
    """Processor time taken by the hypervisor since boot, all cores together; 0 where the kernel does not tell."""
    fields = _first_line("/proc/stat").split()
    ticks = int(fields[8]) if len(fields) > 8 else 0
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _first_line(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _cpu_field(name: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _cpu_model() -> str:
    return _cpu_field("model name") or platform.processor() or "unknown"


def _cpu_flags() -> set[str]:
    return set(_cpu_field("flags").split())


def _cgroup() -> str:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    if Path("/sys/fs/cgroup/unified").exists():
        return "v1 hybrid"
    return "v1" if Path("/sys/fs/cgroup/memory").exists() else "none"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"
