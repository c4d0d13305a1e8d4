"""Staying on: processes, files and kernel objects that should not survive their command, or their sandbox."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dutyfree.probe.payload.kernel import NEWUSER, call, read_start

_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root", "/home", "/etc", "/usr/local/lib", "/var/lib", "/")  # noqa: S108
_LIFE_S = 30
"""Where nothing ends them, what we leave ends itself."""


def daemon(mark: str) -> dict[str, Any]:
    """A double fork with a session of its own and nothing open; the mark is in its command line."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.set_inheritable(write_end, True)
            code = f"import os,time;os.write({write_end},b'x');os.close({write_end});time.sleep({_LIFE_S})"
            os.execv(sys.executable, [sys.executable, "-c", code, mark])
        os._exit(0)
    os.close(write_end)
    return {"started": os.read(read_end, 1) == b"x"}


def stubborn(mark: str) -> dict[str, Any]:
    """Ignore what can be ignored, and stay, with a child in a session of its own that does the same."""
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
    daemon(mark)
    time.sleep(_LIFE_S)
    return {}


def leave_files(mark: str) -> dict[str, Any]:
    """A file in every place that can be written."""
    made = []
    for place in _PLACES:
        try:
            os.close(os.open(f"{place}/{mark}", os.O_CREAT | os.O_WRONLY, 0o666))
        except OSError:
            continue
        made.append(f"{place}/{mark}")
    return {"made": made}


def leave_ipc(number: int, mark: str) -> dict[str, Any]:
    """System V memory, semaphores and queues under one key; a POSIX queue."""
    made = {
        "shm": call("shmget", number, 4096, 0o1666) >= 0,
        "sem": call("semget", number, 1, 0o1666) >= 0,
        "msg": call("msgget", number, 0o1666) >= 0,
        "mq": call("mq_open", mark, os.O_CREAT | os.O_RDWR, 0o666, None) >= 0,
    }
    return {"made": [name for name, done in made.items() if done]}


def find_ipc(number: int, mark: str) -> dict[str, Any]:
    """Look for what `leave_ipc` made elsewhere."""
    found = {
        "shm": call("shmget", number, 0, 0) >= 0,
        "sem": call("semget", number, 0, 0) >= 0,
        "msg": call("msgget", number, 0) >= 0,
        "mq": call("mq_open", mark, os.O_RDWR, 0, None) >= 0,
    }
    return {"found": [name for name, there in found.items() if there]}


def hold_names(port: int, abstract: str) -> dict[str, Any]:
    """Bind a port and an abstract name, say so, and stay until killed."""
    kept: list[socket.socket] = []
    for family, address in ((socket.AF_INET, ("0.0.0.0", port)), (socket.AF_UNIX, "\0" + abstract)):  # noqa: S104
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.bind(address)
        bound.listen()
        kept.append(bound)
    sys.stdout.write("bound\n")
    sys.stdout.flush()
    time.sleep(_LIFE_S)
    return {}


def bind_names(port: int, abstract: str) -> dict[str, Any]:
    """Bind the same names: refused means that somebody else's are in the way."""
    refused = []
    for family, address in ((socket.AF_INET, ("0.0.0.0", port)), (socket.AF_UNIX, "\0" + abstract)):  # noqa: S104
        with socket.socket(family, socket.SOCK_STREAM) as bound:
            try:
                bound.bind(address)
            except OSError as error:
                refused.append(f"{family.name}: {error.strerror}")
    return {"refused": refused}


def nested_daemon(mark: str) -> dict[str, Any]:
    """A daemon in a pid namespace and a cgroup of its own, as far as one can be had."""
    unshared = call("unshare", NEWUSER | 0x20000000) >= 0
    for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/pids"):
        with suppress(OSError):
            os.mkdir(f"{top}/{mark}")
            Path(f"{top}/{mark}/cgroup.procs").write_text(str(os.getpid()))
    return {"unshared": unshared, **daemon(mark)}


def plant(mark: str) -> dict[str, Any]:
    """Edits that the next user of the place would run."""
    planted = []
    home = os.path.expanduser("~")
    for path in (
        *(f"{home}/{name}" for name in (".bashrc", ".profile", ".gitconfig", ".config/pip/pip.conf", ".cache/pip/x")),
        *(
            "/etc/profile",
            "/etc/bash.bashrc",
            "/etc/ld.so.preload.d",
            "/usr/local/bin/python3",
            "/usr/local/bin/pytest",
        ),
        *("/usr/lib/python3/dist-packages/planted.pth", "/usr/lib/python3/dist-packages/sitecustomize.py"),
    ):
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "a") as file:
                file.write(f"# {mark}\n")
            planted.append(path)
    return {"planted": planted}


def planted(paths: list[str], mark: str) -> dict[str, Any]:
    """Which of the edits are here."""
    return {"found": [path for path in paths if mark.encode() in read_start(path, 1 << 20)]}


def digest(paths: list[str]) -> dict[str, Any]:
    """Digest the files as this sandbox sees them."""
    return {
        "digests": {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths if os.path.isfile(path)}
    }


def overwrite(paths: list[str]) -> dict[str, Any]:
    """Change files of the image: in place, through a mapping, and by what lies behind other names of theirs."""
    changed = []
    for path in paths:
        with suppress(OSError, ValueError):
            with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
                mapping[:4] = b"EVIL"
            changed.append(path)
    return {"changed": changed}


def identity() -> dict[str, Any]:
    """Collect the names and ids that identify the machine."""
    return {
        "machine_id": read_start("/etc/machine-id").decode(errors="replace").strip(),
        "hostname": socket.gethostname(),
        "product": read_start("/sys/class/dmi/id/product_uuid").decode(errors="replace").strip(),
    }


def randomness() -> dict[str, Any]:
    """Collect values that must differ between sandboxes."""
    return {
        "urandom": os.urandom(16).hex(),
        "stack": hex(ctypes.addressof(ctypes.create_string_buffer(8))),
        "libc": hex(ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value or 0),
    }


ATTEMPTS = {
    "nested-daemon": nested_daemon,
    "plant": plant,
    "planted": planted,
    "digest": digest,
    "overwrite": overwrite,
    "identity": identity,
    "daemon": daemon,
    "stubborn": stubborn,
    "leave-files": leave_files,
    "leave-ipc": leave_ipc,
    "find-ipc": find_ipc,
    "hold-names": hold_names,
    "bind-names": bind_names,
    "randomness": randomness,
}
