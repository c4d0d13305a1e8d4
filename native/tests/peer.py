"""A raw-frame peer of the agent, for the native tests only: it builds frames byte by byte, and refuses to interpret them.

It is deliberately not the project's client: what is tested here is the agent against the written protocol.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

HELLO, CONFIG, PING = 0x01, 0x02, 0x03
EXEC, SHELL, SHELL_RUN, STDIN, SIGNAL, RESIZE, CANCEL, WINDOW = range(0x10, 0x18)
STARTED, STDOUT, STDERR, EXIT = range(0x20, 0x24)
LISTEN, OPENED, DATA, END, ERROR = 0x40, 0x43, 0x50, 0x51, 0x52
TERMINAL_TYPES = (EXIT, END, ERROR)

SCRIPT, MERGE, TERMINAL, BACKGROUND, STDIN_OPEN, OUTPUT_FATAL, WANT_STARTED, STREAM = (1 << i for i in range(8))
ENDED_EXIT, ENDED_SIGNAL, ENDED_TIMEOUT, ENDED_OOM, ENDED_OUTPUT_LIMIT, ENDED_CANCELLED = range(6)

MANY = 1 << 62
PATIENCE_S = 60


def pack_bytes(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def pack_list(items: list[bytes]) -> bytes:
    return struct.pack("<I", len(items)) + b"".join(map(pack_bytes, items))


def pack_frame(channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("<IIBBH", len(payload), channel, kind, flags, 0) + payload


def pack_exec(
    argv: list[bytes],
    *,
    options: int = 0,
    rows: int = 24,
    columns: int = 80,
    deadline_ns: int = 0,
    limit: int = MANY,
    window: int = MANY,
    cwd: bytes = b"",
    user: bytes = b"",
    env: list[bytes] | None = None,
    stdin: bytes = b"",
) -> bytes:
    return (
        struct.pack("<IHHQQQ", options, rows, columns, deadline_ns, limit, window)
        + pack_bytes(cwd)
        + pack_bytes(user)
        + pack_list(argv)
        + pack_list(env or [])
        + pack_bytes(stdin)
    )


@dataclass(frozen=True)
class Frame:
    channel: int
    kind: int
    flags: int
    payload: bytes


@dataclass(kw_only=True)
class Ended:
    """What one channel said until its terminal frame."""

    frames: list[Frame]
    stdout: bytes = b""
    stderr: bytes = b""
    ending: int = -1
    code: int = -1
    truncated: bool = False
    shell_ended: bool = False
    run_ns: int = 0
    cpu_ns: int = 0
    max_rss_bytes: int = 0
    omitted: int = 0
    errno: int = 0
    what: bytes = b""
    detail: bytes = b""

    @property
    def kind(self) -> int:
        return self.frames[-1].kind


def summarise(frames: list[Frame]) -> Ended:
    ended = Ended(frames=frames)
    ended.stdout = b"".join(f.payload for f in frames if f.kind == STDOUT)
    ended.stderr = b"".join(f.payload for f in frames if f.kind == STDERR)
    last = frames[-1]
    if last.kind == EXIT:
        ending, flags, zero, code, run, cpu, rss, omitted = struct.unpack("<BBHIQQQQ", last.payload)
        assert zero == 0
        ended.ending, ended.code, ended.truncated, ended.shell_ended = ending, code, bool(flags & 1), bool(flags & 2)
        ended.run_ns, ended.cpu_ns, ended.max_rss_bytes, ended.omitted = run, cpu, rss, omitted
    if last.kind == ERROR:
        ended.errno, size = struct.unpack_from("<II", last.payload)
        ended.what = last.payload[8 : 8 + size]
        (detail_size,) = struct.unpack_from("<I", last.payload, 8 + size)
        ended.detail = last.payload[12 + size :]
        assert len(ended.detail) == detail_size
    return ended


@dataclass
class Peer:
    """One agent process and the stream to it."""

    process: subprocess.Popen[bytes]
    stream: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    inbox: dict[int, list[Frame]] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=lambda: count(1))
    hello: Frame | None = None

    @classmethod
    def start(cls, program: Path, *, through: tuple[str, ...] = ()) -> Peer:
        """`through`: a command line that execs the agent, such as unshare."""
        ours, theirs = socket.socketpair()
        argv = [*through, str(program), "--fd", str(theirs.fileno())]
        process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        peer = cls(process, ours)
        peer.hello = peer.wait(0, HELLO)
        return peer

    def send(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        self.stream.sendall(pack_frame(channel, kind, payload, flags))

    def _receive(self, deadline: float) -> None:
        ready, _, _ = select.select([self.stream], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError("the agent has said nothing")
        data = self.stream.recv(1 << 20)
        if not data:
            raise EOFError("the agent has ended the stream")
        self.buffer += data
        at = 0
        while len(self.buffer) - at >= 12:
            size, channel, kind, flags, zero = struct.unpack_from("<IIBBH", self.buffer, at)
            assert zero == 0 and size <= 1 << 20
            if len(self.buffer) - at < 12 + size:
                break
            payload = bytes(self.buffer[at + 12 : at + 12 + size])
            at += 12 + size
            self.inbox.setdefault(channel, []).append(Frame(channel, kind, flags, payload))
        del self.buffer[:at]

    def wait(self, channel: int, *kinds: int) -> Frame:
        """The first frame of such a kind on the channel, once it is there; it stays in the inbox."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for frame in self.inbox.get(channel, []):
                if frame.kind in kinds:
                    return frame
            self._receive(deadline)

    def wait_output(self, channel: int, text: bytes) -> bytes:
        """Receives until the channel's output holds the text."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            said = b"".join(f.payload for f in self.inbox.get(channel, []) if f.kind in (STDOUT, STDERR, DATA))
            if text in said:
                return said
            self._receive(deadline)

    def finish(self, channel: int) -> Ended:
        self.wait(channel, *TERMINAL_TYPES)
        frames = self.inbox.pop(channel)
        assert [f.kind in TERMINAL_TYPES for f in frames] == [False] * (len(frames) - 1) + [True]
        return summarise(frames)

    def config(self, *, idle_ns: int = 0, cwd: bytes = b"", user: bytes = b"", env: list[bytes] | None = None) -> None:
        payload = struct.pack("<Q", idle_ns) + pack_bytes(cwd) + pack_bytes(user) + pack_list(env or [])
        self.send(0, CONFIG, payload)

    def begin(self, argv: list[bytes] | bytes, **fields: object) -> int:
        """Sends an EXEC; bytes are a script."""
        if isinstance(argv, bytes):
            argv = [argv]
            fields["options"] = int(fields.get("options", 0)) | SCRIPT  # type: ignore[call-overload]
        channel = next(self.numbers)
        self.send(channel, EXEC, pack_exec(argv, **fields))  # type: ignore[arg-type]
        return channel

    def run(self, argv: list[bytes] | bytes, **fields: object) -> Ended:
        return self.finish(self.begin(argv, **fields))

    def shell(self, *, cwd: bytes = b"", user: bytes = b"", env: list[bytes] | None = None) -> int:
        channel = next(self.numbers)
        self.send(channel, SHELL, pack_bytes(cwd) + pack_bytes(user) + pack_list(env or []))
        self.wait(channel, OPENED, *TERMINAL_TYPES)
        return channel

    def begin_in(self, shell: int, script: bytes, **fields: object) -> int:
        channel = next(self.numbers)
        named = {"options": 0, "deadline_ns": 0, "limit": MANY, "window": MANY, "stdin": b"", **fields}
        head = struct.pack("<IIQQQ", shell, named["options"], named["deadline_ns"], named["limit"], named["window"])
        self.send(channel, SHELL_RUN, head + pack_bytes(script) + pack_bytes(named["stdin"]))  # type: ignore[arg-type]
        return channel

    def run_in(self, shell: int, script: bytes, **fields: object) -> Ended:
        return self.finish(self.begin_in(shell, script, **fields))

    def ping(self) -> None:
        channel = next(self.numbers)
        self.send(channel, PING, b"are you there")
        assert self.finish(channel).frames[-1].payload == b"are you there"

    def hang_up(self) -> int:
        """Ends the stream and waits for the agent; its exit status."""
        self.stream.close()
        return self.process.wait(PATIENCE_S)


def is_alive(pid: int) -> bool:
    """True for a process that runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(b")") + 2 : stat.rindex(b")") + 3] not in (b"Z", b"X")


def wait_gone(pid: int) -> None:
    """Returns when the process has ended, whoever its parent is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        assert poller.poll(PATIENCE_S * 1000), f"process {pid} is still there"
    finally:
        os.close(descriptor)
