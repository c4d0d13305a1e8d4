"""Facts of this machine, so that results say where they hold and unlike machines are not merged.

Reads /proc and /etc only. Names no user, host name or address: the machine's identity enters as a hash.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import dutyfree

_IDENTITY = ("kernel", "architecture", "cpu", "cpus", "memory_gib", "cgroup", "hypervisor")


def code() -> dict[str, str | None]:
    """The program that measures: a digest of its files, and the commit where it is a checkout."""
    package = Path(dutyfree.__file__).parent
    total = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix == ".py" or path.parent.name == "_native":
            total.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return {"digest": total.hexdigest()[:16], "commit": _commit(package)}


def _commit(package: Path) -> str | None:
    git = shutil.which("git")
    if git is None or not (package.parent.parent / ".git").exists():
        return None
    command = [git, "-C", str(package), "rev-parse", "HEAD"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return said.stdout.strip() or None


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


def written_bytes() -> int | None:
    """Bytes that reached real block devices since boot; None where the kernel does not tell."""
    try:
        lines = Path("/proc/diskstats").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    rows = [line.split() for line in lines]
    real = [row for row in rows if not row[2].startswith(("loop", "ram", "zram", "dm-", "md")) and len(row) > 9]
    whole = [row for row in real if not any(row[2] != o[2] and row[2].startswith(o[2]) for o in real)]
    return sum(int(row[9]) for row in whole) * 512


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
