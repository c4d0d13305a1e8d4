"""Runs inside a sandbox, alone: leaves everything that probes 67 to 81 know of, or says what the sandbox looks like.

    python3 -I -S planting.py plant MARK       ends when all is in place; its daemons stay
    python3 -I -S planting.py look             one line of JSON: equal before and after, or something was left

What cannot be done inside (a mount, a new host name) is tried all the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress

PLACES = (
    "/",
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/run",
    "/root",
    "/home",
    "/etc",
    "/srv",
    "/opt",
    "/usr/local/bin",
    "/usr/local/lib",
    "/var/lib",
    "/var/cache",
)
"""Listed whole when it is looked at."""
EDITED = (
    "/root/.bashrc", "/root/.profile", "/etc/profile", "/etc/ld.so.preload", "/root/.gitconfig", "/root/.cache/pip/x",
    "/usr/local/lib/python3/dist-packages/x.pth", "/root/.local/lib/sitecustomize.py", "/root/.git/hooks/pre-commit",
)  # fmt: skip
DRESSED = ("/root", "/etc", "/etc/passwd", "/usr/local")
"""Get another mode, owner, time and attribute."""
LIMITS = ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_CORE", "RLIMIT_STACK", "RLIMIT_AS")
PORT, KEY, CREATE = 8080, 0x6475, 0o1666


def main() -> None:
    if sys.argv[1] == "plant":
        plant(sys.argv[2])
    else:
        print(json.dumps(look(), sort_keys=True))


def plant(mark: str) -> None:
    files(mark)
    kernel_objects(mark)
    read_end, write_end = os.pipe()
    for act in (daemon, stubborn, holder):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                act(mark)
                os.write(write_end, b"x")
                linger()
            os._exit(0)
    ready = b""
    while len(ready) < 3:
        ready += os.read(read_end, 3)
    processes(mark)


def files(mark: str) -> None:
    for place in PLACES:
        with suppress(OSError):
            os.close(os.open(f"{place}/{mark}", os.O_CREAT | os.O_WRONLY, 0o666))
    for path in EDITED:
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "a") as file:
                file.write(f"# {mark}\n")
    for path in DRESSED:
        for change in (
            lambda path=path: os.chmod(path, 0o700),
            lambda path=path: os.chown(path, 7, 7),
            lambda path=path: os.utime(path, (7, 7)),
            lambda path=path: os.setxattr(path, "user.mark", mark.encode()),
        ):
            with suppress(OSError):
                change()


def kernel_objects(mark: str) -> None:
    libc = ctypes.CDLL(None)
    libc.shmget(KEY, 4096, CREATE), libc.semget(KEY, 1, CREATE), libc.msgget(KEY, CREATE)
    with suppress(AttributeError):
        libc.mq_open(f"/{mark}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
    libc.sethostname(mark.encode(), len(mark))
    with suppress(OSError):
        os.mkdir("/tmp/mounted")
    libc.mount(b"none", b"/tmp/mounted", b"tmpfs", 0, None)
    libc.unshare(0x10000000 | 0x20000000)  # a user and a pid namespace, for the daemons to come


def processes(mark: str) -> None:
    """What a process hands on to those it starts: nothing may have it but this one."""
    os.umask(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    os.environ["MARK"] = mark
    os.chdir("/tmp")
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def daemon(mark: str) -> None:
    gone = os.open(f"/tmp/deleted-{mark}", os.O_CREAT | os.O_RDWR)
    os.unlink(f"/tmp/deleted-{mark}")
    os.write(gone, mark.encode())


def stubborn(_mark: str) -> None:
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)


def holder(mark: str) -> None:
    kept = []
    for family, address in ((socket.AF_INET, ("0.0.0.0", PORT)), (socket.AF_UNIX, "\0" + mark)):
        bound = socket.socket(family)
        bound.bind(address)
        bound.listen()
        kept.append(bound.detach())


def linger() -> None:
    """With nothing open that its command waits for."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    while True:
        time.sleep(1000)


def look() -> dict[str, object]:
    libc = ctypes.CDLL(None)
    mask = os.umask(0)
    os.umask(mask)
    with open("/proc/self/mountinfo") as file:
        mounts = [" ".join(line.split()[3:6]) + " " + line.split(" - ")[1].split()[0] for line in file]
    return {
        "places": {place: sorted(os.listdir(place)) for place in PLACES if os.path.isdir(place)},
        "edited": {path: _content(path) for path in EDITED},
        "dressed": {path: _dress(path) for path in (*PLACES, *DRESSED) if os.path.exists(path)},
        "processes": sum(name.isdecimal() for name in os.listdir("/proc")),
        "ipc": [libc.shmget(KEY, 0, 0), libc.semget(KEY, 0, 0), libc.msgget(KEY, 0)],
        "ipc tables": [_lines(f"/proc/sysvipc/{name}") for name in ("shm", "sem", "msg")],
        "sockets": [_lines(f"/proc/net/{name}") for name in ("unix", "tcp", "tcp6", "udp")],
        "names": [os.uname().nodename, os.getcwd(), oct(mask), sorted(os.environ)],
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "mounts": sorted(mounts),
    }


def _content(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


def _lines(path: str) -> int:
    with open(path) as file:
        return len(file.readlines())


def _dress(path: str) -> list[object]:
    about = os.stat(path)
    own = about.st_dev != os.stat("/").st_dev  # a tmpfs is as young as its sandbox
    return [about.st_mode, about.st_uid, about.st_gid, 0 if own else about.st_mtime_ns, sorted(os.listxattr(path))]


if __name__ == "__main__":
    main()
