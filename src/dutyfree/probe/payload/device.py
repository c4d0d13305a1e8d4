"""Device nodes: those that are there, and those one makes."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dutyfree.probe.payload.kernel import read_start

_CHARACTER = {
    "mem": (1, 1),
    "kmem": (1, 2),
    "port": (1, 4),
    "kmsg": (1, 11),
    "kvm": (10, 232),
    "fuse": (10, 229),
    "vhost-net": (10, 238),
    "vhost-vsock": (10, 241),
    "loop-control": (10, 237),
    "userfaultfd": (10, 126),
    "snapshot": (10, 231),
    "net/tun": (10, 200),
    "mapper/control": (10, 236),
    "btrfs-control": (10, 234),
    "uinput": (10, 223),
}


def open_devices(numbers: dict[str, list[int]]) -> dict[str, Any]:
    """Open the machine's character devices, by their names and by nodes of our own; `numbers` adds to those known."""
    wanted = {**_CHARACTER, **{name: (major, minor) for name, (major, minor) in numbers.items()}}
    opened = []
    for name, (major, minor) in wanted.items():
        with _nodes(stat.S_IFCHR, major, minor) as made:
            paths = (f"/dev/{name}", *made)
            opened += [f"{name} at {path}" for path in paths if _opens(path, os.makedev(major, minor))]
    return {"opened": opened}


def read_disks(devices: list[list[int]]) -> dict[str, Any]:
    """Make nodes of the host's disks and read their beginning."""
    read = []
    for major, minor in devices:
        with _nodes(stat.S_IFBLK, major, minor) as made:
            read += [f"{major}:{minor}" for path in made if read_start(path)]
    return {"read": sorted(set(read))}


@contextmanager
def _nodes(kind: int, major: int, minor: int) -> Iterator[list[str]]:
    """Nodes where it is allowed: on different filesystems, which differ in what they permit."""
    made = []
    for top in ("/tmp", "/dev", "/dev/shm", "/root", "/run"):  # noqa: S108
        try:
            path = tempfile.mktemp(dir=top)  # noqa: S306 (mknod itself refuses a name that is taken)
            os.mknod(path, kind | 0o666, os.makedev(major, minor))
        except OSError:
            continue
        made.append(path)
    try:
        yield made
    finally:
        for path in made:
            os.unlink(path)


def _opens(path: str, number: int) -> bool:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            continue
        found = os.fstat(fd)
        os.close(fd)
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == number:
            return True
    return False


ATTEMPTS = {"open-devices": open_devices, "read-disks": read_disks}
