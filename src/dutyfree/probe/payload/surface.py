"""Large or young kernel interfaces, and other doors into the kernel than the one that is filtered."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any

from dutyfree.probe.payload.kernel import ARM, call, call_number, name_of

_PER_CHILD = 200
_AIMED = ({62, 101, 129, 200, 234, 297, 302, 424}, {117, 129, 130, 131, 138, 240, 261, 424})
"""Aimed at other processes by number, so at our own parent: left out here, they have probes of their own."""


def bpf_map() -> dict[str, Any]:
    """bpf(BPF_MAP_CREATE) of an array."""
    attributes = ctypes.create_string_buffer(struct.pack("=IIIII", 2, 4, 8, 1, 0), 128)
    return _result(call("bpf", 0, attributes, 128))


def io_uring() -> dict[str, Any]:
    """A ring of eight entries."""
    return _result(call("io_uring_setup", 8, ctypes.create_string_buffer(120)))


def userfault() -> dict[str, Any]:
    """A userfaultfd, also the one that only handles user faults."""
    results = [call("userfaultfd", flags) for flags in (0, 1)]
    return _result(max(results))


def perf() -> dict[str, Any]:
    """A software counter of our own process, then of the whole machine."""
    attributes = ctypes.create_string_buffer(struct.pack("=IIQ", 1, 120, 0), 120)
    return _result(max(call("perf_event_open", attributes, pid, cpu, -1, 0) for pid, cpu in ((0, -1), (-1, 0))))


def crypto_socket() -> dict[str, Any]:
    """AF_ALG: the kernel's crypto; also by the 32-bit socketcall."""
    results = [_socket(38, socket.SOCK_SEQPACKET)]
    if not ARM:
        results.append(_in_child(lambda: _int80(359, 38, socket.SOCK_SEQPACKET, 0)))
    return _result(max(results))


def vsock(port: int) -> dict[str, Any]:
    """AF_VSOCK: to the hypervisor, the host and ourselves."""
    made = _socket(40, socket.SOCK_STREAM)
    connected = []
    if made >= 0:
        for cid in (2, 1, 0):
            with socket.socket(40, socket.SOCK_STREAM) as stream:
                stream.settimeout(1)
                try:
                    stream.connect((cid, port))
                    connected.append(cid)
                except OSError:
                    pass
    return {**_result(made), "connected": connected}


def _socket(family: int, kind: int) -> int:
    try:
        socket.socket(family, kind).close()
    except OSError as error:
        return -(error.errno or 1)
    return 0


def key_leave(mark: str) -> dict[str, Any]:
    """Leave a key in every keyring that might outlive us."""
    results = [call("add_key", "user", mark, mark.encode(), len(mark), ring) for ring in (-3, -4, -5)]
    return _result(max(results))


def key_find(mark: str) -> dict[str, Any]:
    """Look for the key another sandbox left."""
    buffer = ctypes.create_string_buffer(256)
    found = []
    for ring in (-3, -4, -5):
        key = call("keyctl", 10, ring, "user", mark, 0)
        if key >= 0:
            call("keyctl", 11, key, buffer, 256)
            found.append(buffer.value.decode(errors="replace"))
    return {"found": found}


def old_entries() -> dict[str, Any]:
    """Getpid by the 32-bit entry (int 0x80) and by an x32 number: both see another table than the filter."""
    if ARM:
        return {"answered": []}
    answered = []
    if _in_child(lambda: _int80(20, 0, 0, 0)) > 0:
        answered.append("int 0x80")
    if _in_child(lambda: call_number(0x40000000 | 39)) > 0:
        answered.append("x32")
    return {"answered": answered}


def _int80(number: int, first: int, second: int, third: int) -> int:
    """A 32-bit system call from 64-bit code: eax, ebx, ecx, edx."""
    code = (
        b"\x53"  # push rbx, which the caller owns
         b"\xb8" + struct.pack("<I", number)
        + b"\xbb" + struct.pack("<I", first)
        + b"\xb9" + struct.pack("<I", second)
        + b"\xba" + struct.pack("<I", third)
        + b"\xcd\x80\x48\x98\x5b\xc3"  # int 0x80; sign-extend; pop rbx; ret
    )  # fmt: skip
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return int(function())


def _in_child(work: Any) -> int:
    """The result of what may kill its process; -1 if it does."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.write(write_end, str(work()).encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    text = os.read(read_end, 64)
    os.close(read_end)
    return int(text) if text else -1


def load_code() -> dict[str, Any]:
    """Kernel images and modules: an answer other than "not permitted" means that the kernel looked at ours."""
    junk = b"\x7fELF" + bytes(60)
    fd = os.memfd_create("module")
    os.write(fd, junk)
    results = {
        "kexec_load": call("kexec_load", 0, 1, None, 0),
        "init_module": call("init_module", junk, len(junk), ""),
        "finit_module": call("finit_module", fd, "", 0),
    }
    return {"looked": [name for name, result in results.items() if result not in (-1, -38)]}


def change_machine() -> dict[str, Any]:
    """Clocks, accounting and swap of the whole machine; every argument is one the kernel would refuse or undo."""
    results = {
        "clock_settime": call("clock_settime", 0, struct.pack("=qq", -1, 0)),
        "settimeofday": call("settimeofday", struct.pack("=qq", -1, 0), None),
        "acct": call("acct", "/nonexistent"),
        "swapon": call("swapon", "/nonexistent", 0),
        "reboot": call("reboot", 0, 0, 0, None),
    }
    return {"looked": [name for name, result in results.items() if result not in (-1, -38)]}


def crash() -> dict[str, Any]:
    """Crash a child, with the largest core dump it may ask for."""
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (limit[1], limit[1]))
        os.kill(os.getpid(), signal.SIGSEGV)
    _, status = os.waitpid(pid, 0)
    return {"dumped": os.WCOREDUMP(status), "limit": limit[1]}


def random_calls(count: int, seed: int) -> dict[str, Any]:
    """Random system calls with random arguments, in children that may die, stop or hang of it; says how far it is."""
    for done in range(0, count, _PER_CHILD):
        pid = os.fork()
        if pid == 0:
            _call_at_random(random.Random(seed + done))  # noqa: S311 (to be repeated)
        _end_within(pid, 0.3)
        sys.stdout.write("done\n")
        sys.stdout.flush()
    return {}


def _call_at_random(chance: random.Random) -> None:
    scratch = ctypes.create_string_buffer(65536)
    values = (0, 1, -1, ctypes.addressof(scratch))
    for _ in range(_PER_CHILD):
        number = chance.randrange(470)
        arguments = [chance.choice((*values, chance.getrandbits(64), chance.randrange(64))) for _ in range(6)]
        if number not in _AIMED[ARM]:
            call_number(number, *(ctypes.c_ulong(argument & (2**64 - 1)) for argument in arguments))
    os._exit(0)


def _end_within(pid: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.002)


def _result(value: int) -> dict[str, Any]:
    return {"succeeded": value >= 0, "result": name_of(value)}


ATTEMPTS = {
    "bpf-map": bpf_map,
    "io-uring": io_uring,
    "userfault": userfault,
    "perf": perf,
    "crypto-socket": crypto_socket,
    "vsock": vsock,
    "key-leave": key_leave,
    "key-find": key_find,
    "old-entries": old_entries,
    "load-code": load_code,
    "change-machine": change_machine,
    "random-calls": random_calls,
    "crash": crash,
}
