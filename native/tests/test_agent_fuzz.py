"""Frames that no honest host sends: the agent ends the connection or answers, and never breaks."""

from __future__ import annotations

import errno
import random
import select
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from frames import Option, Refused, Type, pack_bytes, pack_exec, pack_frame, pack_list, pack_run
from peer import Peer, refusal

FUZZ_S = 20.0
SEED = 20


def ends_the_connection(peer: Peer, data: bytes) -> str:
    """Sends and returns the reason the agent gives for hanging up."""
    peer.stream.sendall(data)
    frame = peer.receive(0, Type.ERROR)
    with pytest.raises((EOFError, ConnectionError)):
        peer.receive(0, Type.PING)
    return Refused(frame.payload).what


MALFORMED = {
    "a payload over the limit": (struct.pack("<IIBBH", (4 << 20) + 1, 1, Type.PING, 0, 0), "frame size"),
    "the largest size": (struct.pack("<IIBBH", 0xFFFFFFFF, 1, Type.PING, 0, 0), "frame size"),
    "a header that is not zero where it must be": (struct.pack("<IIBBH", 0, 1, Type.PING, 0, 1), "frame header"),
    "an unknown type": (pack_frame(1, 0xEE), "frame type"),
    "a type only the agent sends": (pack_frame(1, Type.ERROR), "frame type"),
    "a request on the connection's channel": (pack_frame(0, Type.EXEC, pack_exec([b"true"])), "channel number"),
    "a request on an agent's number": (pack_frame(1 << 31, Type.PING), "channel number"),
    "a config on a channel": (pack_frame(1, Type.CONFIG), "config channel"),
    "an empty exec": (pack_frame(1, Type.EXEC), "exec"),
    "trailing bytes": (pack_frame(1, Type.EXEC, pack_exec([b"true"]) + b"x"), "exec"),
    "a NUL in an argument": (pack_frame(1, Type.EXEC, pack_exec([b"tr\0ue"])), "exec"),
    "a NUL in cwd": (pack_frame(1, Type.EXEC, pack_exec([b"true"], cwd=b"/\0")), "exec"),
    "a list that claims more than there is": (pack_frame(1, Type.SHELL, b"\0" * 8 + b"\xff" * 4), "shell"),
    "a short shell run": (pack_frame(1, Type.SHELL_RUN, b"\1\0\0\0"), "shell run"),
    "a used channel": (pack_frame(1, Type.EXEC, pack_exec([b"sleep", b"1000"])) * 2, "channel in use"),
    "a command's frame it cannot have": (
        pack_frame(1, Type.EXEC, pack_exec([b"sleep", b"1000"])) + pack_frame(1, Type.DATA, b"x"),
        "frame of a command",
    ),
    "a short window": (
        pack_frame(1, Type.EXEC, pack_exec([b"sleep", b"1000"])) + pack_frame(1, Type.WINDOW, b"x"),
        "window",
    ),
    "stdin beyond its credit": (
        pack_frame(1, Type.EXEC, pack_exec([b"sleep", b"1000"], options=Option.STDIN_OPEN))
        + pack_frame(1, Type.STDIN, b"x" * 262_145),
        "stdin credit",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_the_agent_names_what_is_wrong_and_hangs_up_on(peer: Peer, case: str) -> None:
    data, reason = MALFORMED[case]
    assert ends_the_connection(peer, data) == reason


def test_frames_to_a_channel_that_has_ended_are_ignored(peer: Peer) -> None:
    peer.run([b"true"])
    peer.send(1, Type.STDIN, b"late")
    peer.grant(1, 5)
    peer.ping()


def test_too_much_credit_is_as_good_as_enough(peer: Peer) -> None:
    channel = peer.begin(b"read x; echo $x", options=Option.STDIN_OPEN)
    for _ in range(3):
        peer.grant(channel, 2**64 - 1)
    peer.send(channel, Type.STDIN, b"hello\n")
    assert peer.finish(channel).stdout == b"hello\n"


def test_frames_may_arrive_byte_by_byte(peer: Peer) -> None:
    for byte in pack_frame(1, Type.EXEC, pack_exec([b"echo", b"slow"])):
        peer.stream.sendall(bytes([byte]))
    assert peer.finish(1).stdout == b"slow\n"


def test_channels_beyond_the_limit_are_refused(program: Path, start: Callable[..., Peer]) -> None:
    peer = start(program, through=("prlimit", "--nofile=8192:8192"))
    for number in range(1, 4097):
        peer.send(number, Type.LISTEN, struct.pack("<H", 0))
        peer.receive(number, Type.OPENED)
    peer.send(4097, Type.LISTEN, struct.pack("<H", 0))
    peer.send(4098, Type.EXEC, pack_exec([b"true"]))
    for number in (4097, 4098):
        refused = refusal(peer.finish, number)
        assert (refused.errno, refused.what) == (errno.EMFILE, "channel")


def test_without_descriptors_requests_fail_and_the_agent_lives(program: Path, start: Callable[..., Peer]) -> None:
    peer = start(program, through=("prlimit", "--nofile=40:40"))
    channels = [peer.begin(b"read x; echo $x", options=Option.STDIN_OPEN) for _ in range(20)]
    for channel in channels:
        peer.send(channel, Type.STDIN, b"fine\n", 1)
    ends: set[int | bytes] = set()
    for channel in channels:
        try:
            ends.add(peer.finish(channel).stdout)
        except Refused as refused:
            ends.add(refused.errno)
    assert ends == {errno.EMFILE, b"fine\n"}
    assert peer.run([b"true"]).code == 0


def test_a_host_that_asks_and_never_listens_is_not_read_for_ever(peer: Peer) -> None:
    """Its own writes stop: the agent buffers a bounded number of answers."""
    peer.stream.setblocking(False)
    frame, sent = pack_frame(5, Type.PING, b"x" * 60_000), 0
    while sent < 64 << 20 and select.select([], [peer.stream], [], 0.5)[1]:
        sent += peer.stream.send(frame[sent % len(frame) :])
    peer.stream.setblocking(True)
    assert sent < 16 << 20


REQUESTS = [
    pack_frame(1, Type.EXEC, pack_exec([b"echo", b"hi"], env=[b"A=1"], stdin=b"in")),
    pack_frame(
        2,
        Type.EXEC,
        pack_exec([b"cat; echo hi"], options=Option.SCRIPT | Option.STDIN_OPEN | Option.STREAM, limit=10, window=20),
    ),
    pack_frame(3, Type.EXEC, pack_exec([b"stty", b"size"], options=Option.TERMINAL)),
    pack_frame(4, Type.SHELL, pack_bytes(b"/") + pack_bytes(b"") + pack_list([b"A=1"])),
    pack_frame(5, Type.SHELL_RUN, pack_run(4, b"echo hi", deadline_ns=10**7, limit=100, window=100, stdin=b"in")),
    pack_frame(0, Type.CONFIG, struct.pack("<Q", 0) + pack_bytes(b"/") + pack_bytes(b"") + pack_list([b"B=2"])),
    pack_frame(6, Type.PING, b"payload"),
    pack_frame(2, Type.STDIN, b"more", 1),
    pack_frame(2, Type.SIGNAL, struct.pack("<I", 15)),
    pack_frame(3, Type.RESIZE, struct.pack("<HH", 1, 1)),
    pack_frame(2, Type.CANCEL),
    pack_frame(2, Type.WINDOW, struct.pack("<Q", 100)),
    pack_frame(7, Type.READ, struct.pack("<QQQ", 0, 100, 100) + pack_bytes(b"/etc/passwd")),
    pack_frame(8, Type.STAT, struct.pack("<I", 1) + pack_bytes(b"/etc")),
    pack_frame(9, Type.LIST, struct.pack("<Q", 10_000) + pack_bytes(b"/etc")),
    pack_frame(10, Type.LISTEN, struct.pack("<H", 0)),
    pack_frame(11, Type.CONNECT, struct.pack("<QH", 100, 1) + pack_bytes(b"")),
    pack_frame(11, Type.DATA, b"bytes", 1),
]


def test_a_clock_set_beyond_the_end_of_time_after_a_short_one_does_not_spin(peer: Peer) -> None:
    """The short one fires, finds that it is early, and must not set itself to a moment that has passed."""
    peer.config(idle_ns=20_000_000)
    peer.config(idle_ns=2**64 - 1)
    assert select.select([peer.stream], [], [], 0.2)[0] == []  # it neither ends nor speaks
    peer.ping()


def mutate(rng: random.Random, frames: list[bytes]) -> bytes:
    """A stream of mostly valid frames, with a few bytes, lengths or borders wrong."""
    data = bytearray(b"".join(frames))
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[at : at + rng.randrange(1, 8)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 8))
        if not data:
            return b""
    return bytes(data)


def attack(peer: Peer, data: bytes) -> None:
    """Sends all of it and half-closes, then reads until the agent is done with us."""
    try:
        peer.stream.sendall(data)
        peer.stream.shutdown(socket.SHUT_WR)
        while peer.stream.recv(1 << 16):
            pass
    except ConnectionError:
        pass


def test_mutated_streams_never_break_the_agent(sanitized_program: Path, start: Callable[..., Peer]) -> None:
    rng = random.Random(SEED)
    until = time.monotonic() + FUZZ_S
    rounds = 0
    while time.monotonic() < until:
        peer = start(sanitized_program)
        frames = [rng.choice(REQUESTS) for _ in range(rng.randrange(1, 12))]
        attack(peer, mutate(rng, frames))
        assert peer.process.wait(60) == 0, f"round {rounds} of seed {SEED}"
        rounds += 1
    assert rounds > 10
