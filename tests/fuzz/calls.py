"""Runs inside a sandbox: system calls with random flags and arguments, from a seed, in children that may die or hang of it.

    python3 calls.py SEED SECONDS

Three calls in four get arguments of the right kind (descriptors, buffers, paths, flags), so that they come further than the
first check; the others get anything. Ends with one line of JSON: how many calls there were, and how many of each were answered.
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import random
import resource
import select
import signal
import socket
import struct
import sys
import time

ARM = platform.machine() == "aarch64"
CALLS = 300
CHILD_S = 0.4
MOST_NUMBER = 470
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

NAMES = {
    "openat": (257, 56), "ioctl": (16, 29), "fcntl": (72, 25), "mmap": (9, 222), "madvise": (28, 233), "mremap": (25, 216),
    "prctl": (157, 167), "clone": (56, 220), "socket": (41, 198), "socketpair": (53, 199), "setsockopt": (54, 208),
    "getsockopt": (55, 209), "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212),
    "fallocate": (285, 47), "epoll_ctl": (233, 21), "semget": (64, 190), "semctl": (66, 191), "semop": (65, 193), "shmget": (29, 194),
    "shmctl": (31, 195), "shmat": (30, 196), "msgget": (68, 186), "msgsnd": (69, 189), "timer_create": (222, 107),
    "timerfd_create": (283, 85), "memfd_create": (319, 279), "splice": (275, 76), "tee": (276, 77), "copy_file_range": (326, 285),
    "sendfile": (40, 71), "mbind": (237, 235), "set_mempolicy": (238, 237), "io_setup": (206, 0), "inotify_add_watch": (254, 27),
    "setxattr": (188, 5), "getxattr": (191, 8), "renameat2": (316, 276), "linkat": (265, 37), "mknodat": (259, 33), "unshare": (272, 97),
    "mount": (165, 40), "seccomp": (317, 277), "keyctl": (250, 219), "bpf": (321, 280), "pidfd_open": (434, 434), "close_range": (436, 436),
    "landlock_create_ruleset": (444, 444), "futex": (202, 98), "sched_setattr": (314, 274), "prlimit64": (302, 261), "mq_open": (240, 180),
    "signalfd4": (289, 74), "eventfd2": (290, 19), "pipe2": (293, 59), "fchownat": (260, 54), "fchmodat": (268, 53), "statx": (332, 291),
    "mlock2": (325, 284), "msync": (26, 227), "mprotect": (10, 226), "pkey_alloc": (330, 289), "ptrace": (101, 117), "syncfs": (306, 267),
}  # fmt: skip
"""Those that are called more often, on x86_64 and on aarch64."""
AIMED = {62, 200, 234, 129, 297, 424, 34, 15, 60, 231} if not ARM else {129, 130, 131, 138, 240, 424, 139, 93, 94}
"""Signals to others by number, which would end whoever runs this; waiting for good, and ending at once."""
PATHS = (b"/tmp/a", b"/tmp/d", b"/tmp/d/b", b"/proc/self/fd", b"/proc/self/mem", b"/dev/null", b"/dev/ptmx", b"/dev/shm/a", b"/", b".",
         b"/etc/passwd", b"/usr/bin/env", b"/proc/1/fd", b"/proc/sys/kernel/hostname", b"/sys/devices/system/cpu/online", b"user.a")  # fmt: skip


class Arguments:
    """Descriptors, buffers and flags to choose from."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.buffer = mmap.mmap(-1, 1 << 18)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        self.fds = self._descriptors()
        self.places = [self._put(path + b"\0") for path in PATHS]
        self.places += [self._put(struct.pack("QQ", self.base + 65_536, 4096)) for _ in range(4)]
        self.places += [self._put(struct.pack("HH4s8x", 2, 0x901F, b"\x7f\0\0\1")), self._put(struct.pack("I", 1))]
        self.places += [self._put(os.urandom(128)), self._put(bytes(256)), self.base + 131_072]

    def _put(self, data: bytes) -> int:
        offset = self.dice.randrange(0, 60_000) & ~7
        self.buffer[offset : offset + len(data)] = data
        return self.base + offset

    def _descriptors(self) -> list[int]:
        made = []
        makers = (
            lambda: [os.open("/tmp/a", os.O_RDWR | os.O_CREAT)], lambda: [os.open("/tmp/d", os.O_RDONLY)], lambda: [os.open("/usr", os.O_RDONLY)],
            os.pipe, os.openpty, lambda: [os.memfd_create("a")], lambda: [os.open("/proc/self/status", os.O_RDONLY)],
            lambda: [one.detach() for one in socket.socketpair()], lambda: [select.epoll().fileno()], lambda: [os.eventfd(1)],
            lambda: [socket.socket(2, 2).detach()], lambda: [socket.socket(2, 1).detach()], lambda: [socket.socket(10, 2).detach()],
            lambda: [LIBC.inotify_init()], lambda: [os.pidfd_open(os.getpid())], lambda: [LIBC.timerfd_create(1, 0)],
        )  # fmt: skip
        for maker in makers:
            with contextlib.suppress(OSError, AttributeError):
                made += maker()
        return made

    def fitting(self) -> int:
        dice = self.dice
        kind = dice.randrange(10)
        if kind < 3:
            return dice.choice(self.fds)
        if kind < 5:
            return dice.choice(self.places)
        if kind < 7:
            return 1 << dice.randrange(32) | (1 << dice.randrange(32) if dice.random() < 0.5 else 0)
        if kind < 9:
            return dice.randrange(80)
        return dice.choice((-1, -100, 0, 4096, 65_536, (1 << 31) - 1, 1 << 40, os.getpid()))

    def anything(self) -> int:
        return self.dice.choice((0, 1, -1, self.base, self.dice.getrandbits(64), self.dice.randrange(64)))


def in_child(dice: random.Random, tell: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
    with contextlib.suppress(OSError):
        os.mkdir("/tmp/d")
    arguments, known, answered = Arguments(dice), [pair[ARM] for pair in NAMES.values()], {}
    for _ in range(CALLS):
        number = dice.choice(known) if dice.random() < 0.75 else dice.randrange(MOST_NUMBER)
        if number in AIMED:
            continue
        make = arguments.fitting if dice.random() < 0.75 else arguments.anything
        words = [ctypes.c_ulong(make() & (1 << 64) - 1) for _ in range(6)]
        ctypes.set_errno(0)
        parent = os.getpid()
        result = LIBC.syscall(ctypes.c_long(number), *words)
        if os.getpid() != parent:
            os._exit(0)  # a fork of ours
        if result != -1 or ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
            answered[number] = answered.get(number, 0) + 1
        os.write(tell, struct.pack("hh", number, result != -1))
    os._exit(0)


def main(seed: int, seconds: float) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end, rounds, calls, good = time.monotonic() + seconds, 0, 0, {}
    while time.monotonic() < end:
        ready, tell = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(ready)
            os.setsid()
            in_child(random.Random(seed * 1_000_003 + rounds), tell)
        os.close(tell)
        limit = time.monotonic() + CHILD_S
        while (left := limit - time.monotonic()) > 0 and select.select([ready], [], [], left)[0]:
            data = os.read(ready, 4 * 1024)
            if not data:
                break
            for number, fine in struct.iter_unpack("hh", data[: len(data) & ~3]):
                calls += 1
                good[number] = good.get(number, 0) + fine
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        rounds += 1
    print(
        "\n"
        + json.dumps({"rounds": rounds, "calls": calls, "succeeded": sorted(n for n, count in good.items() if count)})
    )


main(int(sys.argv[1]), float(sys.argv[2]))
