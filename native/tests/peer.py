"""The host's end of one agent, synchronous and plain: it sends and receives frames, and keeps no window for the caller."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from frames import (
    END_FLAG,
    LAST,
    MAX_PAYLOAD,
    PLENTY,
    TO_THE_END,
    Ended,
    Entry,
    Frame,
    Name,
    Option,
    Refused,
    Type,
    entries_in,
    pack_bytes,
    pack_exec,
    pack_frame,
    pack_list,
    pack_run,
)

PATIENCE_S = 60.0
"""How long a test waits for a frame before it counts as never coming."""


@dataclass
class Peer:
    """One agent process and the stream to it."""

    process: subprocess.Popen[bytes]
    stream: socket.socket
    waiting: list[Frame] = field(default_factory=list)
    """Received, and not asked for yet."""
    numbers: count[int] = field(default_factory=lambda: count(1))
    hello: Frame = field(init=False)

    @classmethod
    def start(cls, program: Path, *, through: tuple[str, ...] = ()) -> Peer:
        """`through`: a command line that execs the agent, such as unshare."""
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE_S)
        with theirs:
            argv = [*through, str(program), "--fd", str(theirs.fileno())]
            process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        peer = cls(process, ours)
        peer.hello = peer.receive(0, Type.HELLO)
        return peer

    def hang_up(self) -> int:
        """Ends the stream and waits for the agent; its exit status."""
        self.stream.close()
        return self.process.wait(PATIENCE_S)

    # ---- frames ----

    def send(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        self.stream.sendall(pack_frame(channel, kind, payload, flags))

    def grant(self, channel: int, size: int = PLENTY) -> None:
        self.send(channel, Type.WINDOW, struct.pack("<Q", size))

    def ask(self, kind: int, payload: bytes, flags: int = 0) -> int:
        """Sends a request on a fresh channel, and gives its number."""
        channel = next(self.numbers)
        self.send(channel, kind, payload, flags)
        return channel

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self.stream.recv_into(view)
            if not got:
                raise EOFError("the agent has ended the stream")
            view = view[got:]
        return bytes(data)

    def _next(self) -> Frame:
        size, channel, kind, flags, zero = struct.unpack("<IIBBH", self._exactly(12))
        assert zero == 0
        assert size <= MAX_PAYLOAD
        return Frame(channel=channel, type=kind, flags=flags, payload=self._exactly(size))

    def receive(self, channel: int | None = None, kind: int | None = None) -> Frame:
        """The next frame, or the next of one channel or type (others are kept for later)."""

        def wanted(frame: Frame) -> bool:
            return channel in (None, frame.channel) and kind in (None, frame.type)

        for i, frame in enumerate(self.waiting):
            if wanted(frame):
                return self.waiting.pop(i)
        while not wanted(frame := self._next()):
            self.waiting.append(frame)
        return frame

    def kept(self, channel: int) -> bytes:
        """The payloads received on a channel and not asked for yet."""
        return b"".join(frame.payload for frame in self.waiting if frame.channel == channel)

    def wait_output(self, channel: int, text: bytes) -> bytes:
        """Receives until the channel's payloads hold the text; they are kept for later."""
        while text not in self.kept(channel):
            self.waiting.append(self._next())
        return self.kept(channel)

    # ---- answers ----

    def opened(self, channel: int) -> bytes:
        """The payload of the OPENED that answers a request; raises `Refused` on ERROR."""
        frame = self.receive(channel)
        if frame.type == Type.ERROR:
            raise Refused(frame.payload)
        assert frame.type == Type.OPENED
        return frame.payload

    def frames(self, channel: int) -> list[Frame]:
        """All frames of a channel up to its last; raises `Refused` on ERROR."""
        frames = [self.receive(channel)]
        while frames[-1].type not in LAST:
            frames.append(self.receive(channel))
        if frames[-1].type == Type.ERROR:
            raise Refused(frames[-1].payload)
        return frames

    def finish(self, channel: int) -> Ended:
        return Ended(self.frames(channel))

    def result(self, channel: int) -> tuple[bytes, bytes]:
        """All DATA up to END, and END's payload."""
        *before, end = self.frames(channel)
        assert {frame.type for frame in before} <= {Type.DATA}
        assert end.type == Type.END
        return b"".join(frame.payload for frame in before), end.payload

    # ---- connection ----

    def ping(self) -> None:
        """Returns when the agent has dealt with everything sent before."""
        assert self.result(self.ask(Type.PING, b"are you there"))[1] == b"are you there"

    def config(self, *, idle_ns: int = 0, cwd: Name = "", user: Name = "", env: list[bytes] | None = None) -> None:
        payload = struct.pack("<Q", idle_ns) + pack_bytes(cwd) + pack_bytes(user) + pack_list(env or [])
        self.send(0, Type.CONFIG, payload)

    # ---- commands ----

    def begin(self, command: list[bytes] | bytes, *, options: int = 0, **fields: object) -> int:
        """Sends an EXEC; bytes are a script."""
        if isinstance(command, bytes):
            command, options = [command], options | Option.SCRIPT
        return self.ask(Type.EXEC, pack_exec(command, options=options, **fields))

    def run(self, command: list[bytes] | bytes, **fields: object) -> Ended:
        return self.finish(self.begin(command, **fields))

    def shell(self, *, cwd: bytes = b"", user: bytes = b"", env: list[bytes] | None = None) -> int:
        channel = self.ask(Type.SHELL, pack_bytes(cwd) + pack_bytes(user) + pack_list(env or []))
        self.opened(channel)
        return channel

    def begin_in(self, shell: int, script: bytes, **fields: object) -> int:
        return self.ask(Type.SHELL_RUN, pack_run(shell, script, **fields))

    def run_in(self, shell: int, script: bytes, **fields: object) -> Ended:
        return self.finish(self.begin_in(shell, script, **fields))

    # ---- files ----

    def read(self, path: Name, offset: int = 0, length: int = TO_THE_END) -> bytes:
        request = struct.pack("<QQQ", offset, length, PLENTY) + pack_bytes(path)
        return self.result(self.ask(Type.READ, request))[0]

    def write(self, path: Name, data: bytes, *, mode: int = 0o644, options: int = 0) -> int:
        request = struct.pack("<II", options, mode) + pack_bytes(path)
        if len(data) < 100_000:
            channel = self.ask(Type.WRITE, request + pack_bytes(data), END_FLAG)
        else:
            channel = self.ask(Type.WRITE, request + pack_bytes(b""))
            self.upload(channel, data)
        return int(struct.unpack("<Q", self.result(channel)[1])[0])

    def upload(self, channel: int, data: bytes, piece: int = MAX_PAYLOAD) -> None:
        """Sends `data` as DATA frames of `piece` bytes, the last one marked."""
        pieces = [data[i : i + piece] for i in range(0, len(data), piece)] or [b""]
        for part in pieces[:-1]:
            self.send(channel, Type.DATA, part)
        self.send(channel, Type.DATA, pieces[-1], END_FLAG)

    def stat(self, path: Name, *, follow: bool = True) -> Entry:
        (entry,) = entries_in(self.result(self.ask(Type.STAT, struct.pack("<I", follow) + pack_bytes(path)))[1])
        return entry

    def list(self, path: Name) -> list[Entry]:
        return entries_in(self.result(self.ask(Type.LIST, struct.pack("<Q", PLENTY) + pack_bytes(path)))[0])

    def mkdir(self, path: Name, mode: int = 0o755) -> None:
        self.result(self.ask(Type.MKDIR, struct.pack("<I", mode) + pack_bytes(path)))

    def remove(self, path: Name, *, recursive: bool = False) -> None:
        self.result(self.ask(Type.REMOVE, struct.pack("<I", recursive) + pack_bytes(path)))

    def rename(self, source: Name, target: Name) -> None:
        self.result(self.ask(Type.RENAME, pack_bytes(source) + pack_bytes(target)))

    def tar_in(self, path: Name, archive: bytes, piece: int = MAX_PAYLOAD) -> int:
        channel = self.ask(Type.TAR_IN, struct.pack("<I", 0) + pack_bytes(path))
        self.upload(channel, archive, piece)
        return int(struct.unpack("<Q", self.result(channel)[1])[0])

    def tar_out(self, path: Name) -> bytes:
        return self.result(self.ask(Type.TAR_OUT, struct.pack("<Q", PLENTY) + pack_bytes(path)))[0]


def refusal(call: Callable[..., object], *arguments: object, **options: object) -> Refused:
    """The error that a call must end with."""
    with pytest.raises(Refused) as caught:
        call(*arguments, **options)
    return caught.value


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
