"""Looking at processes from outside: descendants, their ends, and what they leave in the cgroup hierarchies."""

import os
import select
import time
from pathlib import Path

from dutyfree.testing.leaks import leaked

PATIENCE_S = 20.0
"""After which something that should end counts as left behind; it ends in milliseconds on a calm machine."""


def parents():
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            table[int(entry.name)] = int(fields[1])
    return table


def descendants(pid):
    table = parents()
    family = {pid}
    while more := {child for child, parent in table.items() if parent in family} - family:
        family |= more
    return sorted(family - {pid})


def born(pid):
    """When it started, by the kernel's clock; None if it is gone. A number may come to mean another process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return None


def comm(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def spawners(owner):
    """The owner's spawner: its child that is called so and is not one of the spawner's own children."""
    return [pid for pid, parent in parents().items() if parent == owner and comm(pid) == "dutyfree-spawne"]


def watch(pids):
    """Descriptors that become readable when their processes end; what has ended already is left out."""
    found = {}
    for pid in pids:
        try:
            found[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
    return found


def survivors(watched, patience_s=PATIENCE_S):
    """Wait for the ends of all; those that did not come. Closes the descriptors."""
    deadline = time.monotonic() + patience_s
    left = dict(watched)
    while left:
        ready, _, _ = select.select(list(left.values()), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        left = {pid: fd for pid, fd in left.items() if fd not in ready}
    for fd in watched.values():
        os.close(fd)
    return sorted(left)


def stays(look, before, patience_s=PATIENCE_S):
    """Return what `look` finds, did not find before, and finds every time it looks again; others' comings and goings are passed over."""
    deadline = time.monotonic() + patience_s
    left = look() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left &= look()
    return left


def cgroups_of(pid):
    # A walk, and no glob: it passes over what other owners remove meanwhile.
    found = []
    for place, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{place}/{name}" for name in names if name.startswith(f"dutyfree-{pid}-")]
        names[:] = [] if place.count("/") >= 7 else [name for name in names if not name.startswith("dutyfree-")]
    return sorted(found)


def marked(mark):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in words:
                found.append(int(entry.name))
    return found


def agent_of(mark):
    """The agent of the sandbox in which a direct child of it carries the mark."""
    table = parents()
    agents = {table[pid] for pid in marked(mark) if comm(table.get(pid, 0)).startswith("dutyfree-")}
    assert len(agents) == 1, f"no single agent has a child marked {mark}: {agents}"
    return agents.pop()


def left_behind(before):
    return [f"{kind}: {what}" for kind, what in leaked(before)]
