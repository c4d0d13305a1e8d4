"""Taking kernel memory that nobody may be charged for. Each attempt says where it has come to, and stops at its bound.

An attempt is a generator that yields after every step, so that one loop can bound all of them: by what the kernel of
the machine holds, by time, and by a refusal.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from dutyfree.probe.payload import sockets
from dutyfree.probe.payload.kernel import ARM, call, call_number

_LIBC = ctypes.CDLL(None, use_errno=True)
_REFUSED = (OSError, MemoryError, RuntimeError)


def policies() -> Iterator[object]:
    """Memory policies of ranges of a shared file: mbind."""
    fd = os.memfd_create("x")
    os.ftruncate(fd, 1 << 44)
    span, number = 60_000 * 4096, 235 if ARM else 237
    mask = ctypes.byref(ctypes.c_ulong(1))
    _LIBC.mmap.restype = ctypes.c_void_p
    _LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    _LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for offset in range(0, 1 << 43, span):
        base = _LIBC.mmap(None, span, 1, 1, fd, offset)
        for page in range(0, 60_000, 2):
            if (refused := call_number(number, base + page * 4096, 4096, 2, mask, 64, 0)) < 0:
                raise OSError(-refused, "mbind")
        _LIBC.munmap(base, span)
        yield fd


def locks() -> Iterator[object]:
    """Locks on single bytes of many files: fcntl."""
    fds = [os.open(f"/tmp/lock-{os.getpid()}-{number}", os.O_RDWR | os.O_CREAT) for number in range(500)]  # noqa: S108
    for start in range(0, 1 << 30, 400):
        for fd in fds:
            for byte in range(start, start + 400, 2):
                fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, byte, 1, 0))
            yield fd


def access_lists() -> Iterator[object]:
    """Long access control lists of files in memory."""
    entries = [(1, 6, -1), *((2, 6, 0) for _ in range(8180)), (4, 6, -1), (0x10, 6, -1), (0x20, 6, -1)]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    for place in ("/dev/shm", "/tmp"):  # noqa: S108
        with suppress(OSError):
            for number in range(100_000):
                path = f"{place}/list-{os.getpid()}-{number}"
                os.mkdir(path)
                os.setxattr(path, "system.posix_acl_access", value)
                os.setxattr(path, "system.posix_acl_default", value)
                yield number


def polls() -> Iterator[object]:
    """Threads that each wait for as many files as one may."""
    read_end, _ = os.pipe()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    entries = (ctypes.c_ulonglong * most)(*(read_end | 1 << 32 for _ in range(most)))
    threading.stack_size(64 << 10)
    while True:
        threading.Thread(target=_LIBC.poll, args=(entries, most, -1), daemon=True).start()
        yield 0


def terminals() -> Iterator[object]:
    """Typed bytes that no terminal's reader takes."""
    while True:
        leader, follower = os.openpty()
        os.set_blocking(leader, False)
        os.set_blocking(follower, False)
        for fd in (leader, follower):
            with suppress(OSError):
                for _ in range(2000):
                    os.write(fd, b"x\n" * 2000)
        yield leader


def directories() -> Iterator[object]:
    """Readings of a changed directory that many keep open, where two layers are shown as one."""
    for number in range(3_000):
        open(f"/tmp/{os.getpid()}-{number}-{'x' * 200}", "w").close()  # noqa: S108
    while True:
        fd = os.open("/tmp", os.O_RDONLY)  # noqa: S108
        buffer = ctypes.create_string_buffer(1024)
        call_number(61 if ARM else 217, fd, buffer, 1024)
        os.close(os.open(f"/tmp/change-{os.getpid()}", os.O_CREAT | os.O_WRONLY))  # noqa: S108
        os.unlink(f"/tmp/change-{os.getpid()}")  # noqa: S108
        yield fd


def rights() -> Iterator[object]:
    """Open files on their way from one socket to another."""
    while True:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in pair:
            end.setblocking(False)
        with suppress(OSError):
            while True:
                socket.send_fds(pair[0], [b"x"], [os.eventfd(0)] * 200)
        yield pair


def watchers() -> Iterator[object]:
    """Things to wait with, each in sets of others."""
    while True:
        made = [os.eventfd(0), _LIBC.timerfd_create(1, 0), _LIBC.inotify_init(), os.pidfd_open(os.getpid())]
        if min(made) < 0:
            raise OSError("no more of one of them")
        waiting = select.epoll()
        with suppress(OSError):
            for fd in made:
                waiting.register(fd)
            _LIBC.inotify_add_watch(made[2], b"/proc/self/task", 0xFFF)
        yield made, waiting


def messages() -> Iterator[object]:
    """Messages, semaphores and memory between processes, and timers of one."""
    timer = ctypes.c_void_p()
    while True:
        queue = call("msgget", 0, 0o1700)
        call("semget", 0, 250, 0o1700)
        call("shmget", 0, 4096, 0o1700)
        done = 0
        if queue >= 0:
            while call_number(189 if ARM else 69, queue, ctypes.create_string_buffer(b"\1" * 8200), 8000, 0o4000) == 0:
                done += 1
        for _ in range(100):
            done += _LIBC.timer_create(1, None, ctypes.byref(timer)) == 0
        if done == 0:
            raise OSError("no more of any")
        yield queue


def mappings() -> Iterator[object]:
    """Mappings with names, in as many pieces as a process may have, and the tables of their pages."""
    memory = mmap.mmap(-1, 1 << 37, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number in range(30_000):
        place = base + (number << 21)
        _LIBC.prctl(0x53564D41, 0, ctypes.c_ulong(place), ctypes.c_ulong(4096), str(number).ljust(70, "x").encode())
        ctypes.c_char.from_address(place).value  # noqa: B018 (a page table for one page)
        if number % 64 == 0:
            yield memory


def rules() -> Iterator[object]:
    """Rule sets of Landlock."""
    handled = ctypes.create_string_buffer(struct.pack("QQ", 1, 0))
    while True:
        fd = call_number(444, handled, 8, 0)
        if fd < 0:
            raise OSError(-fd, "landlock")
        for place in ("/", "/usr", "/tmp", "/proc", "/dev", "/etc"):  # noqa: S108
            parent = os.open(place, os.O_PATH)
            call_number(445, fd, 1, ctypes.create_string_buffer(struct.pack("=Qi", 1, parent)), 0)
            os.close(parent)
        yield fd


def contexts() -> Iterator[object]:
    """Contexts for asynchronous reads and writes: io_setup."""
    for events in (65_536, 8_192, 1_024, 128, 8, 1):
        while (refused := call_number(0 if ARM else 206, events, ctypes.byref(ctypes.c_ulong(0)))) >= 0:
            yield events
    raise OSError(-refused, "io_setup")


def pseudo_terminals() -> Iterator[object]:
    """Terminals."""
    while True:
        yield os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)


def files() -> Iterator[object]:
    """Open files."""
    while True:
        yield [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]


HOARDS: dict[str, Callable[[], Iterator[object]]] = {
    **sockets.HOARDS,
    "policies": policies,
    "locks": locks,
    "access lists": access_lists,
    "poll": polls,
    "terminals": terminals,
    "directories": directories,
    "rights": rights,
    "watchers": watchers,
    "messages": messages,
    "mappings": mappings,
    "rules": rules,
    "contexts": contexts,
    "pseudo terminals": pseudo_terminals,
    "files": files,
}


def kernel_bytes(meminfo: str) -> int:
    """Kernel memory of the machine that cannot be given back: neither free, nor of processes or files."""
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in meminfo.splitlines()}
    others = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable")
    return found["MemTotal"] - sum(found[name] for name in others)


@cache
def _meminfo() -> int:
    """Open before there is no descriptor left to open it with."""
    return os.open("/proc/meminfo", os.O_RDONLY)


def _held() -> int:
    return kernel_bytes(os.pread(_meminfo(), 8192, 0).decode())


def _take(what: list[str], until_bytes: int, until: float) -> tuple[list[object], str]:
    """Take, one kind after the other; what was got, and why it ended."""
    kept: list[object] = []
    why = ""
    for name in what:
        try:
            for made in HOARDS[name]():
                kept.append(made)
                if time.monotonic() > until or _held() > until_bytes:
                    return kept, "at its bound"
        except _REFUSED as error:
            why += f"{name}: {error}; "
    return kept, why


def hoard(what: list[str], most_bytes: int, seconds: float, processes: int = 1, hold: bool = False) -> dict[str, Any]:
    """Take until refused, until the machine's kernel holds so much more, or until the time is over; then keep it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    end, before = time.monotonic() + seconds, _held()
    parent = os.getpid()
    ready, done = os.pipe()
    ends, lives = os.pipe()  # closed when the first of us ends
    with suppress(OSError):
        for _ in range(processes - 1):
            if os.fork() == 0:
                os.close(lives)
                break
    kept, why = _take(what, before + most_bytes, end)
    if os.getpid() != parent:
        os.write(done, b"x")
        os.read(ends, 1)
        os._exit(0)
    _wait_for(ready, processes - 1, end)
    grown = _held() - before
    if hold:
        os.write(1, b"full\n")
        os.read(0, 1)
    else:
        time.sleep(0.5)  # for whoever looks at the machine
    return {"steps": len(kept), "why": why, "grown": grown}


def _wait_for(ready: int, count: int, until: float) -> None:
    """Wait until so many others are as far as we are, or the time is over."""
    with suppress(OSError):  # there is no descriptor left to wait with
        while count > 0 and select.select([ready], [], [], max(0.1, until - time.monotonic()))[0]:
            count -= len(os.read(ready, count))


ATTEMPTS = {"hoard": hoard}
