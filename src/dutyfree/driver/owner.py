"""Mark containers, bundles and pods with their owner, and judge whether that owner still lives.

An owner is a process of one boot of one machine, told from a later process with the same number by its start time. What
another machine made is never judged here.
"""

from __future__ import annotations

import os
from pathlib import Path

OWNER_LABEL = "dutyfree.owner"
"""The key under which a substrate's own labels carry the mark."""

_PARTS = 4


def owner_mark(pid: int | None = None) -> str:
    """The mark of a process: `boot.namespace.pid.start`; only letters, digits, `-` and `.`, as every label takes."""
    number = os.getpid() if pid is None else pid
    return f"{_machine()}.{number}.{_start_time(number)}"


def is_orphan(mark: str) -> bool:
    """The owner was a process of this machine, and is dead. False as well for marks we do not understand."""
    return is_local(mark) and not _is_alive(mark)


def is_local(mark: str) -> bool:
    """The owner is or was a process of this machine, so that we can tell whether it lives."""
    parts = mark.split(".")
    return len(parts) == _PARTS and ".".join(parts[:2]) == _machine() and parts[2].isdecimal()


def _is_alive(mark: str) -> bool:
    pid, start = mark.split(".")[2:]
    return _start_time(int(pid)) == start


def _machine() -> str:
    """The boot and the pid namespace: numbers of processes mean something within both only."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")
    return f"{boot[:16]}.{os.stat('/proc/self/ns/pid').st_ino}"


def _start_time(pid: int) -> str:
    """Start time of a process in ticks since boot; empty: there is no such process, or only its remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = text[text.rindex(")") + 2 :].split()
    return "" if fields[0] in "ZX" else fields[19]
