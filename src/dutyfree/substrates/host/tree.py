"""Killing a process tree from outside, as far as /proc can tell who belongs to it.

Found: the process group, the session, and every descendant whose chain of parents is unbroken. Not found: a child that
left the session and whose parent has died since (a double fork after setsid): it belongs to init now. That is the gap
behind `Capabilities.process_tree = False`.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NamedTuple

ROUNDS = 20
"""A tree that forks while it is being killed is scanned again, this often at most."""


class Entry(NamedTuple):
    """Fields of /proc/PID/stat of a live process."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    """Since boot: with the pid, it names one process for good."""


def kill_tree(root: int, *, spare_root: bool = False) -> None:
    """SIGKILL everything below `root`, a session leader that has not been reaped, and the root itself."""
    for _ in range(ROUNDS):
        found = members(root)
        if not spare_root:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(root, signal.SIGKILL)
        for entry in found:
            _kill(entry)
        if not found:
            return


def members(root: int) -> list[Entry]:
    """The live processes of `root`'s tree or session, without itself."""
    table = _processes()
    found = {root}
    grew = True
    while grew:
        more = {entry.pid for entry in table if entry.parent in found or entry.session == root} - found
        found |= more
        grew = bool(more)
    return [entry for entry in table if entry.pid in found and entry.pid != root]


def _processes() -> list[Entry]:
    return [entry for name in os.listdir("/proc") if name.isdigit() and (entry := _entry(int(name)))]


def _entry(pid: int) -> Entry | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The name in the second field may hold anything, so count from its closing bracket.
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return Entry(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def _kill(entry: Entry) -> None:
    """Through a pidfd, and only if the pid still is the process that was seen."""
    with suppress(OSError):
        pidfd = os.pidfd_open(entry.pid)
        try:
            now = _entry(entry.pid)
            if now is not None and now.start_ticks == entry.start_ticks:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
