"""The state that one rollout hands to the next if nobody is careful: file metadata, timers, masks, clocks."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from dutyfree.probe.payload.linger import daemon

_PLACES = ("/etc", "/opt", "/root", "/srv", "/usr/local", "/usr/lib/python3", "/var/lib", "/bin/sh", "/usr/bin/env")
_MOST = 5_000


def manifest() -> dict[str, Any]:
    """One hash over names, kinds, owners, modes, times, attributes and contents; and how many files it saw."""
    total, digest = 0, hashlib.sha256()
    for path in _walk(_PLACES):
        digest.update(_facts(path))
        total += 1
    return {"digest": digest.hexdigest(), "files": total}


def _walk(tops: tuple[str, ...]) -> Iterator[str]:
    left = _MOST
    for top in tops:
        if os.path.islink(top) or not os.path.isdir(top):
            yield top
            continue
        for place, folders, names in os.walk(top):
            folders.sort()
            for name in sorted([*names, *folders]):
                left -= 1
                if left < 0:
                    return
                yield os.path.join(place, name)


def _facts(path: str) -> bytes:
    try:
        found = os.lstat(path)
        names = sorted(os.listxattr(path, follow_symlinks=False))
        attributes = [(name, os.getxattr(path, name, follow_symlinks=False)) for name in names]
    except OSError as error:
        return f"{path}: {error.errno}\n".encode()
    content = b""
    with suppress(OSError):
        if stat.S_ISLNK(found.st_mode):
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(found.st_mode) and found.st_size < 1 << 16:
            with open(path, "rb") as file:
                content = file.read()
    kept = (
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_mtime_ns,
        0 if stat.S_ISDIR(found.st_mode) else found.st_size,
    )
    return repr((path, kept, attributes, content)).encode(errors="surrogateescape")


def disturb(mark: str) -> dict[str, Any]:
    """Change times, owners, modes, attributes and contents of files that the image has; remove one, add one."""
    done = []
    for path in ("/etc/passwd", "/etc", "/usr/local", "/usr/bin/env", "/etc/hosts"):
        for name, work in (
            ("times", partial(os.utime, path, ns=(1, 1))),
            ("mode", partial(os.chmod, path, 0o711)),
            ("owner", partial(os.chown, path, 1, 1)),
            ("attribute", partial(os.setxattr, path, "user.mark", mark.encode())),
        ):
            with suppress(OSError):
                work()
                done.append(f"{name} of {path}")
    with suppress(OSError), open(f"/etc/{mark}", "w") as file:
        file.write(mark)
    with suppress(OSError):
        os.unlink("/etc/issue")
    return {"done": done}


def overlay_marks(top: str) -> dict[str, Any]:
    """Devices 0/0 and overlay attributes below a directory."""
    marks = []
    for place, folders, names in os.walk(top):
        for path in (os.path.join(place, name) for name in (*folders, *names)):
            with suppress(OSError):
                found = os.lstat(path)
                if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                    marks.append(f"a whiteout at {path}")
                attributes = os.listxattr(path, follow_symlinks=False)
                marks += [f"{name} on {path}" for name in attributes if ".overlay." in name]
    return {"marks": marks}


def leave_timers(mark: str) -> dict[str, Any]:
    """Timers that ring after we are gone: ours, and a daemon's."""
    signal.setitimer(signal.ITIMER_REAL, 5)
    signal.setitimer(signal.ITIMER_VIRTUAL, 5)
    signal.setitimer(signal.ITIMER_PROF, 5)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGALRM})
    os.kill(os.getpid(), signal.SIGUSR1)
    os.nice(5)
    return daemon(mark)


def inherited() -> dict[str, Any]:
    """Collect what a process inherits besides memory and files."""
    umask = os.umask(0o77)
    os.umask(umask)
    return {
        "timers": [signal.getitimer(kind) for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "pending": sorted(signal.sigpending()),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "ignored": sorted(one for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN),
        "nice": os.nice(0),
        "scheduler": os.sched_getscheduler(0),
        "processors": len(os.sched_getaffinity(0)),
        "umask": umask,
    }


def clocks() -> dict[str, Any]:
    """The clocks, in seconds."""
    names = ("MONOTONIC", "BOOTTIME", "MONOTONIC_RAW", "REALTIME")
    return {name: time.clock_gettime(getattr(time, f"CLOCK_{name}")) for name in names}


def share(seconds: float) -> dict[str, Any]:
    """Measure the share of a processor that we get while we want all of it."""
    start, used = time.monotonic(), time.process_time()
    while time.monotonic() < start + seconds:
        pass
    return {"share": (time.process_time() - used) / (time.monotonic() - start)}


def stay(mark: str) -> dict[str, Any]:
    """Say that we are there, and be there; the mark is in our command line."""
    sys.stdout.write(f"staying {mark}\n")
    sys.stdout.flush()
    time.sleep(60)
    return {}


ATTEMPTS = {
    "manifest": manifest,
    "disturb": disturb,
    "overlay-marks": overlay_marks,
    "leave-timers": leave_timers,
    "inherited": inherited,
    "clocks": clocks,
    "share": share,
    "stay": stay,
}
