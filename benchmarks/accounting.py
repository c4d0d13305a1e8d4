"""What the machine holds for us, counted: the leak accounting of `soak` and `chaos`.

Ours exactly: mounts, cgroups, processes, descriptors, directories, threads (`dutyfree.testing.leaks`), the spawner's
descriptors, resident memory. The machine's, where others may be at work too: kernel objects that outlive their last
visible name (dying cgroups, network namespaces, mounts), and tasks. Of the disk, what the store has.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dutyfree.image.store import locate

_SLABS = {"network namespaces": "net_namespace", "mounts": "mnt_cache", "pid namespaces": "pid_namespace"}
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """One reading."""

    kernel: dict[str, int]
    """Objects of the whole machine, by name."""
    descriptors: int
    """Of the spawners below us."""
    rss_bytes: int
    """Ours and the spawners'."""
    disk_bytes: int
    inodes: int
    """Of the store."""


def read_account() -> Account:
    """Look, without starting anything."""
    spawners = _spawners()
    blocks = _blocks()
    return Account(
        kernel=_kernel(),
        descriptors=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in spawners),
        rss_bytes=read_rss(),
        disk_bytes=512 * sum(blocks),
        inodes=len(blocks),
    )


def read_rss() -> int:
    """Resident memory, ours and the spawners'."""
    return sum(_rss(pid) for pid in [os.getpid(), *_spawners()])


def _blocks() -> list[int]:
    """The size of each thing in the store, in units of 512 bytes."""
    found = []
    for place, folders, files in os.walk(locate(os.environ, os.geteuid())):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                found.append(os.lstat(f"{place}/{name}").st_blocks)
    return found


def _kernel() -> dict[str, int]:
    found = {}
    for name, slab in _SLABS.items():
        path = Path(f"/sys/kernel/slab/{slab}/objects")
        if path.exists():
            found[name] = int(path.read_text().split()[0])
    found["tasks"] = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    for line in Path("/proc/cgroups").read_text().splitlines()[1:]:
        controller, _, count, _ = line.split()
        if controller in ("memory", "pids", "cpu"):
            found[f"{controller} cgroups, dying ones too"] = int(count)
    dying = Path("/sys/fs/cgroup/cgroup.stat")
    if dying.exists():
        found["dying cgroups"] = int(dying.read_text().split("nr_dying_descendants ")[1].split()[0])
    return found


def _spawners() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("dutyfree-spawne")]


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def slope(points: list[tuple[int, int]]) -> float:
    """Least squares: how much the second grows per one of the first."""
    n = len(points)
    if n < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
