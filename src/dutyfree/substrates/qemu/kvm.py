"""Is KVM worth using here? A few instructions in a guest of their own, timed; the device's existence says nothing.

Some machines have a /dev/kvm behind which guests are emulated, a thousand times slower, and die of instructions that
the emulator does not know. A loop tells: below 5 ns per round is a processor, hundreds are an emulator. Run as a
program, this module is the child that does it, so that whatever the device does to it, the asker goes on after
`PATIENCE_S`.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

DEVICE = "/dev/kvm"
PATIENCE_S = 10.0
NATIVE_NS = 5.0

_CREATE_VM, _VCPU_MMAP_SIZE, _CREATE_VCPU, _SET_MEMORY, _RUN = 0xAE01, 0xAE04, 0xAE41, 0x4020AE46, 0xAE80
_SET_REGS, _GET_SREGS, _SET_SREGS = 0x4090AE82, 0x8138AE83, 0x4138AE84
_REGS, _SREGS_BYTES = "<18Q", 312
_EXIT_HLT = 5
_ROUNDS, _RUNS = 100_000, 3
_CODE = bytes.fromhex("6649 75fc f4")  # real mode: dec ecx; jnz back; hlt
_CODE_AT = 0x1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Finding about KVM."""

    usable: bool
    reason: str
    """One line, for people and records."""


def judge(device: str = DEVICE, *, patience_s: float = PATIENCE_S) -> Verdict:
    """Look, for a fraction of a second; at most `patience_s`."""
    if not os.path.exists(device):
        return Verdict(usable=False, reason=f"there is no {device}")
    if not os.access(device, os.R_OK | os.W_OK):
        return Verdict(usable=False, reason=f"{device} may not be opened")
    try:
        found = subprocess.run(
            [sys.executable, "-I", __file__, device],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience_s,
        )
    except subprocess.TimeoutExpired:
        return Verdict(usable=False, reason=f"a loop in a guest did not end within {patience_s:g} s")
    if found.returncode != 0:
        words = found.stderr.strip().splitlines()
        return Verdict(usable=False, reason=f"a guest cannot run: {words[-1] if words else found.returncode}")
    return verdict(float(found.stdout))


def verdict(round_ns: float) -> Verdict:
    """Judge KVM by the time of one round of the loop."""
    if round_ns < NATIVE_NS:
        return Verdict(usable=True, reason=f"guest code runs natively ({round_ns:.1f} ns per round)")
    return Verdict(
        usable=False, reason=f"{DEVICE} emulates: {round_ns:.0f} ns per round of a loop that takes a processor 1"
    )


def measure(device: str) -> float:
    """Nanoseconds per round of the loop in a guest; the best of a few runs."""
    kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    machine = fcntl.ioctl(kvm, _CREATE_VM, 0)
    memory = mmap.mmap(-1, 0x4000)
    memory[_CODE_AT : _CODE_AT + len(_CODE)] = _CODE
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(machine, _SET_MEMORY, struct.pack("<IIQQQ", 0, 0, 0, len(memory), address))
    cpu = fcntl.ioctl(machine, _CREATE_VCPU, 0)
    state = mmap.mmap(cpu, fcntl.ioctl(kvm, _VCPU_MMAP_SIZE, 0))
    segments = bytearray(_SREGS_BYTES)
    fcntl.ioctl(cpu, _GET_SREGS, segments)
    struct.pack_into("<QIH", segments, 0, 0, 0xFFFF, 0)  # the code segment comes first: base, limit, selector
    fcntl.ioctl(cpu, _SET_SREGS, segments)
    return min(_timed(cpu, state) for _ in range(_RUNS))


def _timed(cpu: int, state: mmap.mmap) -> float:
    registers = [0] * 18
    registers[2], registers[16], registers[17] = _ROUNDS, _CODE_AT, 2
    fcntl.ioctl(cpu, _SET_REGS, struct.pack(_REGS, *registers))
    start_ns = time.perf_counter_ns()
    fcntl.ioctl(cpu, _RUN, 0)
    took_ns = time.perf_counter_ns() - start_ns
    reason = struct.unpack_from("<I", state, 8)[0]
    if reason != _EXIT_HLT:
        raise OSError(0, f"the guest ended for reason {reason}, not by its own halt")
    return took_ns / _ROUNDS


if __name__ == "__main__":
    sys.stdout.write(f"{measure(sys.argv[1])}\n")
