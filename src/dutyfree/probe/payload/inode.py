"""Holding on to files that may be the host's own: a watch, a lock, a lease, and reading."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import time
from contextlib import suppress
from typing import Any

_HOLD_S = 20.0
_IN_OPEN, _IN_NONBLOCK = 0x20, 0o4000


def hold(*, what: str, path: str, ready: str, done: str) -> dict[str, Any]:
    """Take hold of a file or directory, say so by making the file `ready`, let go when `done` appears."""
    said: dict[str, Any] = {"result": "ok"}
    watch = -1
    try:
        if what == "watch":
            watch = _watch(path)
        else:
            _take(what, path)
    except OSError as error:
        said = {"result": error.strerror}
    with open(ready, "w"):
        pass
    deadline = time.monotonic() + _HOLD_S
    while not os.path.exists(done) and time.monotonic() < deadline:
        time.sleep(0.02)
    if watch >= 0:
        said["seen"] = sorted(_seen(watch))
    return said


def _watch(path: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(_IN_NONBLOCK)
    if fd < 0 or libc.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(fd)


def _take(what: str, path: str) -> None:
    fd = os.open(path, os.O_RDONLY)  # stays open for as long as this process lives
    if what == "lock":
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)


def _seen(watch: int) -> set[str]:
    names = set()
    with suppress(BlockingIOError):
        while events := os.read(watch, 65_536):
            at = 0
            while at < len(events):
                (size,) = struct.unpack_from("=I", events, at + 12)
                names.add(events[at + 16 : at + 16 + size].rstrip(b"\0").decode(errors="replace"))
                at += 16 + size
    return names


ATTEMPTS = {"hold": hold}
