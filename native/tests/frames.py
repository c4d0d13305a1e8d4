"""Frames of the agent's protocol, packed and unpacked byte by byte, for the native tests only.

It is deliberately not the project's client: what is tested here is the agent against the written protocol.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

MAX_PAYLOAD = 1 << 20
INITIAL_CREDIT = 256 << 10
TO_THE_END = 2**64 - 1
PLENTY = 1 << 60
END_FLAG = 1

Name = bytes | str | os.PathLike[str]


class Type(IntEnum):
    HELLO, CONFIG, PING = 0x01, 0x02, 0x03
    EXEC, SHELL, SHELL_RUN, STDIN, SIGNAL, RESIZE, CANCEL, WINDOW = range(0x10, 0x18)
    STARTED, STDOUT, STDERR, EXIT = range(0x20, 0x24)
    READ, WRITE, STAT, LIST, MKDIR, REMOVE, RENAME, TAR_IN, TAR_OUT = range(0x30, 0x39)
    LISTEN, ACCEPT, CONNECT, OPENED = range(0x40, 0x44)
    DATA, END, ERROR = 0x50, 0x51, 0x52


LAST = (Type.EXIT, Type.END, Type.ERROR)


class Option(IntFlag):
    SCRIPT, MERGE, TERMINAL, BACKGROUND, STDIN_OPEN, OUTPUT_FATAL, WANT_STARTED, STREAM = (1 << i for i in range(8))


class Ending(IntEnum):
    EXIT, SIGNAL, TIMEOUT, OOM, OUTPUT_LIMIT, CANCELLED = range(6)


# ---- to the agent ----


def pack_frame(channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("<IIBBH", len(payload), channel, kind, flags, 0) + payload


def pack_bytes(data: Name) -> bytes:
    raw = os.fsencode(data)
    return struct.pack("<I", len(raw)) + raw


def pack_list(items: list[bytes]) -> bytes:
    return struct.pack("<I", len(items)) + b"".join(map(pack_bytes, items))


def pack_exec(
    argv: list[bytes],
    *,
    options: int = 0,
    rows: int = 24,
    columns: int = 80,
    deadline_ns: int = 0,
    limit: int = PLENTY,
    window: int = PLENTY,
    cwd: bytes = b"",
    user: bytes = b"",
    env: list[bytes] | None = None,
    stdin: bytes = b"",
) -> bytes:
    head = struct.pack("<IHHQQQ", options, rows, columns, deadline_ns, limit, window)
    return head + pack_bytes(cwd) + pack_bytes(user) + pack_list(argv) + pack_list(env or []) + pack_bytes(stdin)


def pack_run(
    shell: int,
    script: bytes,
    *,
    options: int = 0,
    deadline_ns: int = 0,
    limit: int = PLENTY,
    window: int = PLENTY,
    stdin: bytes = b"",
) -> bytes:
    head = struct.pack("<IIQQQ", shell, options, deadline_ns, limit, window)
    return head + pack_bytes(script) + pack_bytes(stdin)


# ---- from the agent ----


@dataclass(frozen=True, kw_only=True)
class Frame:
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


class Ended:
    """A command that has ended: what its channel said, up to EXIT."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.stdout = b"".join(frame.payload for frame in frames if frame.type == Type.STDOUT)
        self.stderr = b"".join(frame.payload for frame in frames if frame.type == Type.STDERR)
        assert frames[-1].type == Type.EXIT, frames[-1]
        self.ending, flags, self.oom_kills, self.code, *numbers = struct.unpack("<BBHIQQQQQ", frames[-1].payload)
        self.run_ns, self.cpu_ns, self.max_rss_bytes, self.omitted, self.stderr_omitted = numbers
        self.truncated, self.shell_ended = bool(flags & 1), bool(flags & 2)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A directory entry."""

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
