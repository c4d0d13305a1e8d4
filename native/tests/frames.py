"""A plain, synchronous host side of the wire protocol, for tests that look at single frames.

It owns one agent process and its stream, and refuses to be clever: no reordering, no window kept for the caller.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parent.parent
BUILDS = {"build": "make -C native", "build-sanitize": "make -C native SANITIZE=1"}
MAX_PAYLOAD = 1 << 20
INITIAL_CREDIT = 256 << 10
TO_THE_END = 2**64 - 1
PLENTY = 1 << 60
END_FLAG = 1
PATIENCE_S = 60.0
"""How long a test waits for a frame before it counts as never coming."""


class Type(IntEnum):
    """Frame types, as in the reference."""

    HELLO, CONFIG, PING = 0x01, 0x02, 0x03
    CANCEL, WINDOW = 0x16, 0x17
    READ, WRITE, STAT, LIST, MKDIR, REMOVE, RENAME, TAR_IN, TAR_OUT = range(0x30, 0x39)
    LISTEN, ACCEPT, CONNECT, OPENED = range(0x40, 0x44)
    DATA, END, ERROR = 0x50, 0x51, 0x52


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One frame from the agent."""

    channel: int
    type: int
    flags: int
    payload: bytes


class Refused(Exception):
    """The agent answered ERROR."""

    def __init__(self, payload: bytes) -> None:
        self.errno, size = struct.unpack_from("<II", payload)
        self.what = payload[8 : 8 + size].decode()
        (detail_size,) = struct.unpack_from("<I", payload, 8 + size)
        self.detail = payload[12 + size :]
        assert len(self.detail) == detail_size
        super().__init__(f"{os.strerror(self.errno)}: {self.what}: {self.detail!r}")


def refusal(call: Callable[..., object], *arguments: object, **options: object) -> Refused:
    """The error that a call must end with."""
    with pytest.raises(Refused) as caught:
        call(*arguments, **options)
    return caught.value


def packed(data: bytes | str | os.PathLike[str]) -> bytes:
    """The protocol's `bytes`."""
    raw = data if isinstance(data, bytes) else os.fsencode(data)
    return struct.pack("<I", len(raw)) + raw


@dataclass(kw_only=True)
class Entry:
    """A decoded directory entry."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    name: bytes


def entries_in(data: bytes) -> list[Entry]:
    """Decodes whole entries; fails on a cut one."""
    found, at = [], 0
    while at < len(data):
        mode, uid, gid, size, mtime_ns, name_size = struct.unpack_from("<IIIQQI", data, at)
        at += 32
        name = data[at : at + name_size]
        assert len(name) == name_size, "an entry was cut"
        found.append(Entry(mode=mode, uid=uid, gid=gid, size=size, mtime_ns=mtime_ns, name=name))
        at += name_size
    return found


@dataclass(kw_only=True)
class Agent:
    """An agent process and the host's end of its stream."""

    binary: Path
    prefix: tuple[str, ...] = ()
    """A command that execs the agent."""
    user: int | None = None
    process: subprocess.Popen[bytes] = field(init=False)
    stream: socket.socket = field(init=False)
    last_channel: int = 0

    def __enter__(self) -> Agent:
        self.stream, theirs = socket.socketpair()
        with theirs:
            argv = [*self.prefix, str(self.binary), "--fd", str(theirs.fileno())]
            self.process = subprocess.Popen(
                argv,
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
            )
        self.stream.settimeout(PATIENCE_S)
        self.waiting: list[Frame] = []
        hello = self.receive()
        assert hello.type == Type.HELLO
        return self

    def __exit__(self, *exc: object) -> None:
        self.stream.close()
        _, complaint = self.process.communicate(timeout=PATIENCE_S)
        assert b"Sanitizer" not in complaint, complaint.decode()
        assert b"runtime error" not in complaint, complaint.decode()
        assert self.process.returncode == 0, complaint.decode()

    def send(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        header = struct.pack("<IIBBH", len(payload), channel, kind, flags, 0)
        self.stream.sendall(header + payload if len(payload) < 65536 else header)
        if len(payload) >= 65536:
            self.stream.sendall(payload)

    def ask(self, kind: int, payload: bytes, flags: int = 0) -> int:
        """Sends a request on a fresh channel, and gives its number."""
        self.last_channel += 1
        self.send(self.last_channel, kind, payload, flags)
        return self.last_channel

    def exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self.stream.recv_into(view)
            if not got:
                raise EOFError("the agent has ended")
            view = view[got:]
        return bytes(data)

    def receive(self, channel: int | None = None, kind: int | None = None) -> Frame:
        """The next frame, or the next of one channel or type (others are kept for later)."""

        def wanted(frame: Frame) -> bool:
            return channel in (None, frame.channel) and kind in (None, frame.type)

        for i, frame in enumerate(self.waiting):
            if wanted(frame):
                return self.waiting.pop(i)
        while True:
            size, number, sort, flags, zero = struct.unpack("<IIBBH", self.exactly(12))
            assert size <= MAX_PAYLOAD
            assert zero == 0
            frame = Frame(channel=number, type=sort, flags=flags, payload=self.exactly(size))
            if wanted(frame):
                return frame
            self.waiting.append(frame)

    def result(self, channel: int) -> tuple[bytes, bytes]:
        """All DATA up to END, and END's payload; raises `Refused` on ERROR."""
        data = bytearray()
        while True:
            frame = self.receive(channel)
            if frame.type == Type.DATA:
                data += frame.payload
            elif frame.type == Type.END:
                return bytes(data), frame.payload
            else:
                assert frame.type == Type.ERROR, frame
                raise Refused(frame.payload)

    # ---- requests ----

    def ping(self) -> None:
        """Returns when the agent has dealt with everything sent before."""
        assert self.result(self.ask(Type.PING, b"x"))[1] == b"x"

    def config(self, user: str) -> None:
        self.send(0, Type.CONFIG, struct.pack("<Q", 0) + packed("") + packed(user) + struct.pack("<I", 0))

    def read(self, path: os.PathLike[str] | str | bytes, offset: int = 0, length: int = TO_THE_END) -> bytes:
        request = struct.pack("<QQQ", offset, length, PLENTY) + packed(path)
        return self.result(self.ask(Type.READ, request))[0]

    def write(self, path: os.PathLike[str] | str | bytes, data: bytes, *, mode: int = 0o644, options: int = 0) -> int:
        request = struct.pack("<II", options, mode) + packed(path)
        if len(data) < 100_000:
            channel = self.ask(Type.WRITE, request + packed(data), END_FLAG)
        else:
            channel = self.ask(Type.WRITE, request + packed(b""))
            self.upload(channel, data, MAX_PAYLOAD)
        return int(struct.unpack("<Q", self.result(channel)[1])[0])

    def upload(self, channel: int, data: bytes, piece: int) -> None:
        """Sends `data` as DATA frames of `piece` bytes, the last one marked."""
        pieces = [data[i : i + piece] for i in range(0, len(data), piece)] or [b""]
        for part in pieces[:-1]:
            self.send(channel, Type.DATA, part)
        self.send(channel, Type.DATA, pieces[-1], END_FLAG)

    def stat(self, path: os.PathLike[str] | str | bytes, *, follow: bool = True) -> Entry:
        end = self.result(self.ask(Type.STAT, struct.pack("<I", follow) + packed(path)))[1]
        (entry,) = entries_in(end)
        return entry

    def list(self, path: os.PathLike[str] | str | bytes) -> list[Entry]:
        return entries_in(self.result(self.ask(Type.LIST, struct.pack("<Q", PLENTY) + packed(path)))[0])

    def mkdir(self, path: os.PathLike[str] | str | bytes, mode: int = 0o755) -> None:
        self.result(self.ask(Type.MKDIR, struct.pack("<I", mode) + packed(path)))

    def remove(self, path: os.PathLike[str] | str | bytes, *, recursive: bool = False) -> None:
        self.result(self.ask(Type.REMOVE, struct.pack("<I", recursive) + packed(path)))

    def rename(self, source: os.PathLike[str] | str, target: os.PathLike[str] | str) -> None:
        self.result(self.ask(Type.RENAME, packed(source) + packed(target)))

    def tar_in(self, path: os.PathLike[str] | str, archive: bytes, piece: int = MAX_PAYLOAD) -> int:
        channel = self.ask(Type.TAR_IN, struct.pack("<I", 0) + packed(path))
        self.upload(channel, archive, piece)
        return int(struct.unpack("<Q", self.result(channel)[1])[0])

    def tar_out(self, path: os.PathLike[str] | str) -> bytes:
        return self.result(self.ask(Type.TAR_OUT, struct.pack("<Q", PLENTY) + packed(path)))[0]


def deep_tree(root: Path, depth: int) -> None:
    """A chain of directories, made by descriptor: its path is longer than any system call takes."""
    at = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


def binary_of(build: str) -> Path:
    """The agent of one build; skips if it has not been made."""
    binary = NATIVE / build / "dutyfree-agent"
    if not binary.exists():
        pytest.skip(f"{build}/dutyfree-agent is missing: {BUILDS[build]}")
    return binary
