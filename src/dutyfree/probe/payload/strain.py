"""Straining what is shared and not limited by a number of its own: caches, tables, queues. Bounded in time or count."""

from __future__ import annotations

import ctypes
import os
import select
import tempfile
import time
from contextlib import suppress
from typing import Any

from dutyfree.probe.payload.kernel import NEWNS, NEWUSER, call

_LIBC = ctypes.CDLL(None, use_errno=True)


def thrash(seconds: float, mark: str) -> dict[str, Any]:  # noqa: ARG001 - the mark is for our command line
    """Read every file there is, again and again, through the page cache."""
    end = time.monotonic() + seconds
    size = 0
    while time.monotonic() < end:
        for directory, _, names in os.walk("/usr"):
            for name in names:
                with suppress(OSError), open(os.path.join(directory, name), "rb", buffering=0) as file:
                    size += len(file.read(1 << 20))
            if time.monotonic() > end:
                break
    return {"read": size}


def deep_tree(depth: int) -> dict[str, Any]:
    """Directories in directories, far deeper than any path can say."""
    os.chdir(tempfile.mkdtemp())
    made = 0
    with suppress(OSError):
        for made in range(depth):  # noqa: B007 (how far it came is the answer)
            os.mkdir("d")
            os.chdir("d")
    return {"made": made}


def sync_storm(seconds: float) -> dict[str, Any]:
    """Write a block, wait until it is safe, and again."""
    end = time.monotonic() + seconds
    done = 0
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < end:
            os.pwrite(file.fileno(), os.urandom(4096), 0)
            os.fsync(file.fileno())
            done += 1
    return {"done": done}


def flush() -> dict[str, Any]:
    """Ask for everything to be written: of the machine, and of every file system that can be named."""
    os.sync()
    asked = done = 0
    for place in ("/", "/usr/bin", "/usr/bin/env", "/etc", "/tmp", "/dev/null", "/dev/shm", "/proc", "/sys"):  # noqa: S108
        with suppress(OSError):
            fd = os.open(place, os.O_RDONLY)
            asked += 1
            done += _LIBC.syncfs(fd) == 0
            os.close(fd)
    return {"asked": asked, "done": done}


def missing_names(count: int) -> dict[str, Any]:
    """Ask for names that are not there: the kernel remembers each."""
    for number in range(count):
        os.path.exists(f"/tmp/missing-{number}-{'x' * 200}")  # noqa: S108
    return {"asked": count}


def watches(most: int, hold: bool = False) -> dict[str, Any]:
    """Queues that wait for events, until refused."""
    made = {"inotify": 0, "epoll": 0, "timer": 0}
    kept: list[Any] = []
    with suppress(OSError):
        while made["inotify"] < most and (fd := int(_LIBC.inotify_init())) >= 0:
            _LIBC.inotify_add_watch(fd, b"/tmp", 0xFFF)
            made["inotify"] += 1
    with suppress(OSError):
        while made["epoll"] < most:
            kept.append(select.epoll())
            made["epoll"] += 1
    timer = ctypes.c_void_p()
    while made["timer"] < most and _LIBC.timer_create(1, None, ctypes.byref(timer)) == 0:
        made["timer"] += 1
    _full(hold)
    return {"made": made}


def namespaces(most: int, hold: bool = False) -> dict[str, Any]:
    """Namespaces and mounts, as many as there may be."""
    made = 0
    while made < most and call("unshare", NEWUSER | NEWNS) == 0:
        call("mount", "x", "/tmp", "tmpfs", 0, None)  # noqa: S108
        made += 1
    _full(hold)
    return {"made": made}


def _full(hold: bool) -> None:
    """Say that there is no more to be had, and keep it until our input ends."""
    if hold:
        os.write(1, b"full\n")
        os.read(0, 1)


ATTEMPTS = {
    "thrash": thrash,
    "deep-tree": deep_tree,
    "sync-storm": sync_storm,
    "flush": flush,
    "missing-names": missing_names,
    "watches": watches,
    "namespaces": namespaces,
}
