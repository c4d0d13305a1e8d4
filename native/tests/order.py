"""A raw-packet owner of the spawner, for the native tests only: it packs the structs of spawner.h by hand.

It is deliberately not the project's own: what is tested here is the spawner against its header.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LAYER, CREATE, DESTROY, STOCK = 1, 2, 3, 4
READY, LAYERED, FAILED, GONE = 1, 2, 3, 4
DIED, DESTROYED, LIFETIME, OOM = range(4)
HOST_NETWORK, DISK, SETTLED = 1, 2, 4
MAX_LAYERS, MAX_BINDS, TARGET_SIZE = 60, 8, 64

PATIENCE_S = 60
HELLO_SIZE = 12 + 20


class Event(NamedTuple):
    kind: int
    tag: int
    error: int
    reason: int
    detail: str


def layer(number: int, path: bytes, *, host: bool = False, end: bytes = b"\0") -> bytes:
    return struct.pack("=IIII", LAYER, number, number, host) + path + end


def stock(count: int) -> bytes:
    return struct.pack("=IIII", STOCK, 0, count, 0)


def destroy(tag: int) -> bytes:
    return struct.pack("=II", DESTROY, tag)


def create(
    tag: int,
    layers: list[int],
    *,
    layer_count: int | None = None,
    bind_count: int = 0,
    target: bytes = b"",
    flags: int = 0,
    memory_bytes: int = 0,
    lifetime_ns: int = 0,
    pids: int = 64,
) -> bytes:
    counts = (len(layers) if layer_count is None else layer_count, bind_count)
    numbers = (layers + [0] * MAX_LAYERS)[:MAX_LAYERS]
    binds = struct.pack(f"=I{TARGET_SIZE}s", 0, target) * MAX_BINDS
    limits = struct.pack("=QQQQQ", memory_bytes, 0, 16 << 20, 1000, lifetime_ns)
    return (
        struct.pack("=II", CREATE, tag)
        + limits
        + struct.pack("=IIII", pids, flags, *counts)
        + struct.pack(f"={MAX_LAYERS}I", *numbers)
        + binds
    )


@dataclass
class Owner:
    """The spawner's parent: sends packets and reads events."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    @classmethod
    def start(cls, program: Path, *, cgroup: str = "auto") -> Owner:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [program, "--control", str(theirs.fileno()), "--owner", str(os.getpid()), "--cgroup", cgroup]
            # Leaks are looked for by the tests, from outside: the sanitizer's own search needs to trace the process.
            environment = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1"}
            process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=environment, stderr=subprocess.PIPE)
        return cls(process, ours)

    def send(self, packet: bytes, fds: list[int] | None = None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.control.sendmsg([packet], rights)

    def event(self) -> Event:
        ready, _, _ = select.select([self.control], [], [], PATIENCE_S)
        assert ready, "the spawner says nothing"
        packet = self.control.recv(4096)
        assert packet, "the spawner is gone: " + (self.process.stderr.read().decode() if self.process.stderr else "")
        kind, tag, error, reason, detail = struct.unpack("=IIiI112s", packet)
        return Event(kind, tag, error, reason, detail.rstrip(b"\0").decode())

    def quiet(self) -> None:
        """Everything sent so far has been served: an unknown tag is answered at once, after what came before it."""
        self.send(destroy(0xFFFFFFFF))
        event = self.event()
        assert (event.kind, event.tag) == (GONE, 0xFFFFFFFF), event

    def boot(self, tag: int, layers: list[int], **options: int) -> socket.socket:
        """Order a sandbox; our end of its agent's stream, once it has greeted."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.send(create(tag, layers, **options), [theirs.fileno()])
        ours.settimeout(PATIENCE_S)
        greeting = ours.recv(4096)
        assert len(greeting) == HELLO_SIZE, greeting
        return ours

    def children(self) -> list[int]:
        return [
            int(word) for word in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self) -> int:
        """Hang up; its exit status."""
        self.control.close()
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        assert errors == b"", errors.decode()
        return self.process.returncode
