"""What /proc says of this process and those below it: who lives, what woke up, what is still held. Reads only."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What a set of processes has done since each began."""

    wake_ups: int
    """Times the scheduler put one of them on a processor: switches, voluntary or not."""
    cpu_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdings:
    """What is held on this machine, as far as it can be ours."""

    processes: int
    """Below this process."""
    mounts: int
    """In this process's own namespace."""
    own_fds: int
    """Open in this process."""
    below_fds: int
    """Open in the processes below."""
    cgroups: int
    """Directories of the spawners that were named."""

    def growth(self, before: Holdings) -> list[str]:
        """What there is more of than before, for people."""
        names = {"processes": "processes", "mounts": "mounts", "own_fds": "descriptors of ours", "cgroups": "cgroups"}
        names["below_fds"] = "descriptors below us"
        more = {text: getattr(self, name) - getattr(before, name) for name, text in names.items()}
        return [f"{count} {text}" for text, count in more.items() if count > 0]


def descendants(pid: int) -> list[int]:
    """Every process below, nearest first."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and (parent := _parent(int(entry.name))) is not None:
            children[parent].append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children[queue.pop(0)]
        found += below
        queue += below
    return found


def is_agent(pid: int) -> bool:
    """First process of a process namespace of its own: a sandbox's agent, or a blank that will be one."""
    numbers = _status(pid).get("NSpid", "").split()
    return len(numbers) > 1 and numbers[-1] == "1"


def activity(pids: list[int]) -> Activity:
    """Sum over processes, all threads."""
    wake_ups = cpu_ns = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            status = _status_of(task / "status")
            wake_ups += int(status["voluntary_ctxt_switches"]) + int(status["nonvoluntary_ctxt_switches"])
            cpu_ns += _cpu_ns(task)
    return Activity(wake_ups=wake_ups, cpu_ns=cpu_ns)


def holdings(spawners: list[int]) -> Holdings:
    """What is held now; `spawners` (alive or not) are those whose cgroups count."""
    below = descendants(os.getpid())
    return Holdings(
        processes=len(below),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        own_fds=_fds("self"),
        below_fds=sum(_fds(pid) for pid in below),
        cgroups=sum(1 for pid in spawners for _ in Path("/sys/fs/cgroup").rglob(f"dutyfree-{pid}-*/")),
    )


def available_bytes() -> int:
    """What the kernel could give to new processes without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _fds(pid: int | str) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0  # it ended meanwhile, or is protected from us


def _parent(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None  # it ended meanwhile
    return int(text.rpartition(")")[2].split()[1])


def _status(pid: int) -> dict[str, str]:
    return _status_of(Path(f"/proc/{pid}/status"))


def _status_of(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _cpu_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except OSError:  # a kernel without it counts in ticks
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
