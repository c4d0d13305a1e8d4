"""The whole view that a process of the sandbox has of itself, for comparison with an expected manifest."""

from __future__ import annotations

import os
import resource
from typing import Any

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_STATUS = (
    "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups", "SigBlk", "SigIgn",
    "Umask", "TracerPid",
)  # fmt: skip
_LIMITS = ("RLIMIT_CORE", "RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_MEMLOCK")


def posture() -> dict[str, Any]:
    """Capabilities, filters, ids, namespaces, descriptors, mounts and limits."""
    status = dict(line.split(":\t", 1) for line in _read("/proc/self/status").splitlines() if ":\t" in line)
    return {
        "status": {name: status.get(name, "").strip() for name in _STATUS},
        "uid_map": [[int(part) for part in line.split()] for line in _read("/proc/self/uid_map").splitlines()],
        "gid_map": [[int(part) for part in line.split()] for line in _read("/proc/self/gid_map").splitlines()],
        "namespaces": {name: _link(f"/proc/self/ns/{name}") for name in _NAMESPACES},
        "descriptors": sorted(fd for fd in range(4096) if _is_open(fd)),
        "mounts": [_mount(line) for line in _read("/proc/self/mountinfo").splitlines()],
        "limits": {name: list(resource.getrlimit(getattr(resource, name))) for name in _LIMITS},
        "processes": sorted(int(entry) for entry in os.listdir("/proc") if entry.isdecimal()),
        "pid": os.getpid(),
        "interfaces": sorted(line.split(":")[0].strip() for line in _read("/proc/net/dev").splitlines()[2:]),
        "sys": sorted(os.listdir("/sys")) if os.path.isdir("/sys") else [],
        "proc": {name: _access(f"/proc/{name}") for name in sorted(os.listdir("/proc")) if not name.isdecimal()},
        "devices": sorted(os.listdir("/dev")),
        "environment": sorted(os.environ),
        "core_target": os.path.realpath("/proc/self/exe"),
    }


def _access(path: str) -> str:
    """Test the access to a file of /proc without writing: r, w, both or neither; d for a directory."""
    if os.path.isdir(path):
        return "d"
    found = ""
    for letter, flag in (("r", os.O_RDONLY), ("w", os.O_WRONLY)):
        try:
            fd = os.open(path, flag | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            found += letter if letter == "w" or os.read(fd, 1) else ""
        except OSError:
            continue
        finally:
            os.close(fd)
    return found


def _mount(line: str) -> dict[str, str]:
    left, right = line.split(" - ", 1)
    fields = left.split()
    return {
        "root": fields[3],
        "point": fields[4],
        "options": fields[5],
        "type": right.split()[0],
        "peers": " ".join(fields[6:]),
    }


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


ATTEMPTS = {"posture": posture}
