"""The protocol's numbers and how requests are packed; the text is `docs/reference/wire-protocol.md`.

Packs only what `argument` has checked. What the agent answers is parsed in `reply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

MAGIC: Final = 0x41465344
VERSION: Final = 1
HEADER: Final = Struct("<IIBBH")
HEADER_SIZE: Final = 12
MAX_PAYLOAD: Final = 1 << 20
MAX_REQUEST: Final = 4 << 20
"""Of a request: more than a kernel takes as arguments and environment."""
INITIAL_CREDIT: Final = 256 << 10
"""Bytes of stdin or relayed data the agent takes on a channel before it has said so."""
MAX_CREDIT: Final = 16 << 20
"""More than this outstanding is no honest grant."""
AGENT_CHANNEL: Final = 0x8000_0000

HELLO: Final = 0x01
CONFIG: Final = 0x02
PING: Final = 0x03
EXEC: Final = 0x10
SHELL: Final = 0x11
SHELL_RUN: Final = 0x12
STDIN: Final = 0x13
SIGNAL: Final = 0x14
RESIZE: Final = 0x15
CANCEL: Final = 0x16
WINDOW: Final = 0x17
STARTED: Final = 0x20
STDOUT: Final = 0x21
STDERR: Final = 0x22
EXIT: Final = 0x23
READ: Final = 0x30
WRITE: Final = 0x31
STAT: Final = 0x32
LIST: Final = 0x33
MKDIR: Final = 0x34
REMOVE: Final = 0x35
RENAME: Final = 0x36
TAR_IN: Final = 0x37
TAR_OUT: Final = 0x38
LISTEN: Final = 0x40
ACCEPT: Final = 0x41
CONNECT: Final = 0x42
OPENED: Final = 0x43
DATA: Final = 0x50
END: Final = 0x51
ERROR: Final = 0x52

FLAG_END: Final = 1
"""On STDIN, WRITE and DATA: nothing follows."""

SCRIPT: Final = 1 << 0
MERGE: Final = 1 << 1
TERMINAL: Final = 1 << 2
BACKGROUND: Final = 1 << 3
STDIN_OPEN: Final = 1 << 4
OUTPUT_FATAL: Final = 1 << 5
WANT_STARTED: Final = 1 << 6
STREAM: Final = 1 << 7

TO_THE_END: Final = (1 << 64) - 1

U16: Final = Struct("<H")
U32: Final = Struct("<I")
U64: Final = Struct("<Q")
_EXEC: Final = Struct("<IHHQQQ")
_SHELL_RUN: Final = Struct("<IIQQQ")
_READ: Final = Struct("<QQQ")
_WRITE: Final = Struct("<II")
_CONNECT: Final = Struct("<QH")
_SIZE: Final = Struct("<HH")

Bytes = bytes | bytearray | memoryview

_header = HEADER.pack
_u32 = U32.pack
_EMPTY_STRINGS: Final = _u32(0) * 2


def frame(channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """A whole frame."""
    return _header(len(payload), channel, kind, flags, 0) + payload


def head(channel: int, kind: int, size: int, flags: int = 0) -> bytes:
    """A frame's header, for a payload that is sent after it without being copied."""
    return _header(size, channel, kind, flags, 0)


def packed(data: Bytes) -> bytes:
    """`bytes`: a length and the bytes."""
    return _u32(len(data)) + data


def packed_list(items: Sequence[bytes]) -> bytes:
    """`list`: a count and that many `bytes`."""
    parts = [_u32(len(items))]
    for item in items:
        parts.append(_u32(len(item)))
        parts.append(item)
    return b"".join(parts)


def config(idle_ns: int, cwd: bytes, user: bytes, env: Sequence[bytes]) -> bytes:
    """Payload of CONFIG."""
    return U64.pack(idle_ns) + packed(cwd) + packed(user) + packed_list(env)


def execution(
    options: int,
    rows: int,
    columns: int,
    deadline_ns: int,
    output_limit: int,
    window: int,
    cwd: bytes,
    user: bytes,
    argv: Sequence[bytes],
    env: Sequence[bytes],
) -> bytes:
    """Payload of EXEC, but for the stdin that ends it."""
    place = packed(cwd) + packed(user) if cwd or user else _EMPTY_STRINGS
    start = _EXEC.pack(options, rows, columns, deadline_ns, output_limit, window)
    return start + place + packed_list(argv) + packed_list(env)


def shell(cwd: bytes, user: bytes, env: Sequence[bytes]) -> bytes:
    """Payload of SHELL."""
    return packed(cwd) + packed(user) + packed_list(env)


def shell_run(
    shell_channel: int, options: int, deadline_ns: int, output_limit: int, window: int, script: bytes
) -> bytes:
    """Payload of SHELL_RUN, but for the stdin that ends it."""
    return _SHELL_RUN.pack(shell_channel, options, deadline_ns, output_limit, window) + packed(script)


def read(offset: int, length: int, window: int, path: bytes) -> bytes:
    """Payload of READ."""
    return _READ.pack(offset, length, window) + packed(path)


def write(options: int, mode: int, path: bytes) -> bytes:
    """Payload of WRITE, but for the user, where an option says that there is one, and the data."""
    return _WRITE.pack(options, mode) + packed(path)


def optioned(options: int, path: bytes) -> bytes:
    """Payload of STAT, MKDIR (the mode), REMOVE and TAR_IN."""
    return _u32(options) + packed(path)


def windowed(window: int, path: bytes) -> bytes:
    """Payload of LIST and TAR_OUT."""
    return U64.pack(window) + packed(path)


def connect(window: int, port: int) -> bytes:
    """Payload of CONNECT to a port of the sandbox's loopback."""
    return _CONNECT.pack(window, port) + packed(b"")


def resize(rows: int, columns: int) -> bytes:
    """Payload of RESIZE."""
    return _SIZE.pack(rows, columns)
