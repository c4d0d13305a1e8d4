"""Using up what is limited. Every bomb is bounded: where nothing stops it, it stops itself a few times over the limit."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from typing import Any


def fork_bomb(most: int, hold_s: float) -> dict[str, Any]:
    """Children that live until we have counted them; they fork in turn."""
    read_end, write_end = os.pipe()
    refused = ""
    children: list[int] = []
    while len(children) < most:
        try:
            pid = os.fork()
        except OSError as error:
            refused = error.strerror or "refused"
            break
        if pid == 0:
            os.close(write_end)
            signal.alarm(int(hold_s) + 30)
            os.read(read_end, 1)  # until the bomber goes
            os._exit(0)
        children.append(pid)
    sys.stdout.write("full\n")
    sys.stdout.flush()
    if hold_s > 0:
        _wait(hold_s)
    os.close(write_end)
    for pid in children:
        os.waitpid(pid, 0)
    return {"lived": len(children) + 1, "refused": refused}


def _wait(seconds: float) -> None:
    """Without a thread, of which there may be none left to have."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.pause()


def thread_bomb(most: int) -> dict[str, Any]:
    """Threads that wait for an event."""
    threading.stack_size(64 << 10)
    end = threading.Event()
    started = 0
    refused = ""
    while started < most:
        try:
            threading.Thread(target=end.wait, daemon=True).start()
        except RuntimeError as error:
            refused = str(error)
            break
        started += 1
    end.set()
    return {"lived": started + 1, "refused": refused}


def memory_bomb(most_bytes: int) -> dict[str, Any]:
    """Touch every page of ever more memory."""
    kept: list[bytearray] = []
    step = 4 << 20
    while len(kept) * step < most_bytes:
        kept.append(bytearray(os.urandom(4096) * (step // 4096)))
    return {"touched": len(kept) * step}


def fill(places: list[str], most_bytes: int) -> dict[str, Any]:
    """Write until refused, in each place; nothing is removed before all are full."""
    written = {}
    refused = {}
    block = os.urandom(1 << 16)
    for place in places:
        written[place] = 0
        try:
            with tempfile.NamedTemporaryFile(dir=place, delete=False) as file:
                while written[place] < most_bytes:
                    written[place] += os.write(file.fileno(), block)
        except OSError as error:
            refused[place] = error.strerror or "refused"
    return {"written": written, "refused": refused}


def fill_inodes(place: str, most: int) -> dict[str, Any]:
    """Empty files until refused."""
    directory = tempfile.mkdtemp(dir=place)
    for number in range(most):
        try:
            os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            return {"made": number, "refused": error.strerror}
    return {"made": most, "refused": ""}


def open_many(most: int, hold: bool = False) -> dict[str, Any]:
    """Descriptors until refused, in several processes."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    opened: list[int] = []
    refused = ""
    while len(opened) < most:
        try:
            opened.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            refused = error.strerror or "refused"
            break
    if hold:
        os.write(1, b"full\n")
        os.read(0, 1)
    return {"opened": len(opened), "refused": refused}


def fill_pipes(most_bytes: int) -> dict[str, Any]:
    """Bytes parked in pipes and sockets that nobody reads."""
    parked = 0
    block = bytes(1 << 16)
    ends: list[Any] = []
    while parked < most_bytes:
        try:
            pair = socket.socketpair()
            pair[0].setblocking(False)
            ends.append(pair)
            while parked < most_bytes:
                parked += pair[0].send(block)
        except BlockingIOError:
            continue
        except OSError as error:
            return {"parked": parked, "refused": error.strerror}
    return {"parked": parked, "refused": ""}


def flood(size: int, chunk: int) -> dict[str, Any]:
    """So many bytes on stdout, without a newline, in writes of one size."""
    block = b"x" * chunk
    left = size
    while left > 0:
        left -= os.write(1, block[: min(chunk, left)])
    return {}


def zombies(most: int) -> dict[str, Any]:
    """Orphans that end at once: whoever adopts them has to collect them."""
    for number in range(most):
        try:
            pid = os.fork()
        except OSError as error:
            return {"made": number, "refused": error.strerror}
        if pid == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(pid, 0)
    return {"made": most, "refused": ""}


def spin(processes: int, seconds: float) -> dict[str, Any]:
    """Busy processes; how many processors they had together."""
    children = []
    start = time.monotonic()
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            while True:
                pass
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"share": (used.ru_utime + used.ru_stime) / (time.monotonic() - start)}


ATTEMPTS = {
    "fork-bomb": fork_bomb,
    "thread-bomb": thread_bomb,
    "memory-bomb": memory_bomb,
    "fill": fill,
    "fill-inodes": fill_inodes,
    "open-many": open_many,
    "fill-pipes": fill_pipes,
    "flood": flood,
    "zombies": zombies,
    "spin": spin,
}
