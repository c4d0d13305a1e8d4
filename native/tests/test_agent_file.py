"""The agent's file requests, frame by frame, on the plain and the sanitised build."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from frames import BUILDS, END_FLAG, PLENTY, TO_THE_END, Agent, Type, binary_of, packed, refusal

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root: run as root")


@pytest.fixture(params=BUILDS)
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    with Agent(binary=binary_of(request.param)) as running:
        yield running


# ---- read ----


@pytest.mark.parametrize("size", [0, 1, 1024, 65536, 1 << 20, (3 << 20) + 17])
def test_a_file_is_read_exactly(agent: Agent, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert agent.read(tmp_path / "file") == content


def test_end_tells_the_size_of_the_file(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    channel = agent.ask(Type.READ, struct.pack("<QQQ", 10, 20, PLENTY) + packed(tmp_path / "file"))
    data, end = agent.result(channel)
    assert (len(data), struct.unpack("<Q", end)) == (20, (5000,))


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, 3, b"abc"),
        (3, 2, b"de"),
        (4, 100, b"ef"),
        (6, 5, b""),
        (1000, 5, b""),
        (2, TO_THE_END, b"cdef"),
        (1, 0, b""),
    ],
)
def test_a_part_of_a_file_is_read(agent: Agent, tmp_path: Path, offset: int, length: int, expected: bytes) -> None:
    (tmp_path / "file").write_bytes(b"abcdef")
    assert agent.read(tmp_path / "file", offset, length) == expected


def test_an_offset_beyond_the_largest_file_is_refused(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert refusal(agent.read, tmp_path / "file", 2**63).what == "offset"


def test_a_part_of_a_sparse_tebibyte_is_read(agent: Agent, tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.seek(1 << 40)
        file.write(b"end")
    assert agent.read(tmp_path / "sparse", (1 << 40) - 2, 10) == b"\0\0end"


def test_a_whole_sparse_tebibyte_stops_at_the_window_and_can_be_cancelled(agent: Agent, tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    channel = agent.ask(Type.READ, struct.pack("<QQQ", 0, TO_THE_END, 100_000) + packed(tmp_path / "sparse"))
    agent.ping()
    got = sum(len(frame.payload) for frame in agent.waiting if frame.channel == channel)
    assert got == 100_000
    agent.send(channel, Type.CANCEL)
    assert refusal(agent.result, channel).errno == errno.ECANCELED


def test_reading_stops_without_credit_and_goes_on_with_it(agent: Agent, tmp_path: Path) -> None:
    content = os.urandom(10_000)
    (tmp_path / "file").write_bytes(content)
    channel = agent.ask(Type.READ, struct.pack("<QQQ", 0, TO_THE_END, 0) + packed(tmp_path / "file"))
    got = b""
    while len(got) < len(content):
        agent.ping()
        assert not [frame for frame in agent.waiting if frame.channel == channel]
        agent.send(channel, Type.WINDOW, struct.pack("<Q", 3000))
        got += agent.receive(channel).payload
    assert got == content
    assert agent.receive(channel).type == Type.END


def test_a_file_that_grows_is_read_up_to_its_first_size(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 1000)
    channel = agent.ask(Type.READ, struct.pack("<QQQ", 0, TO_THE_END, 500) + packed(tmp_path / "file"))
    first = agent.receive(channel).payload
    with open(tmp_path / "file", "ab") as file:
        file.write(b"b" * 1000)
    agent.send(channel, Type.WINDOW, struct.pack("<Q", PLENTY))
    assert first + agent.result(channel)[0] == b"a" * 1000


def test_a_file_that_shrinks_ends_early(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 1000)
    channel = agent.ask(Type.READ, struct.pack("<QQQ", 0, TO_THE_END, 500) + packed(tmp_path / "file"))
    first = agent.receive(channel).payload
    os.truncate(tmp_path / "file", 600)
    agent.send(channel, Type.WINDOW, struct.pack("<Q", PLENTY))
    assert len(first + agent.result(channel)[0]) == 600


def test_a_proc_file_is_read_although_its_size_is_zero(agent: Agent) -> None:
    assert b"MemTotal" in agent.read("/proc/meminfo")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_socket])
def test_fifos_and_sockets_are_neither_read_nor_written(agent: Agent, tmp_path: Path, make: object) -> None:
    make(tmp_path / "odd")  # type: ignore[operator]
    reading = refusal(agent.read, tmp_path / "odd")
    writing = refusal(agent.write, tmp_path / "odd", b"x")
    for refused in (reading, writing):
        assert refused.errno in (errno.EINVAL, errno.ENXIO)
        assert refused.detail.endswith(b"not a regular file")


def test_a_fifo_with_a_reader_is_not_written(agent: Agent, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert refusal(agent.write, tmp_path / "fifo", b"x").errno == errno.EINVAL
        assert os.read(reader, 10) == b""
    finally:
        os.close(reader)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/ptmx"])
def test_devices_are_neither_read_nor_written(agent: Agent, path: str) -> None:
    assert refusal(agent.read, path).errno == errno.EINVAL
    assert refusal(agent.write, path, b"x").errno == errno.EINVAL


def test_a_directory_is_not_a_file(agent: Agent, tmp_path: Path) -> None:
    assert refusal(agent.read, tmp_path).errno == errno.EISDIR
    assert refusal(agent.write, tmp_path, b"x").errno == errno.EISDIR


def test_a_missing_file_is_named_in_the_error(agent: Agent, tmp_path: Path) -> None:
    refused = refusal(agent.read, tmp_path / "missing")
    assert (refused.errno, refused.what) == (errno.ENOENT, "path")
    assert os.fsencode(tmp_path / "missing") in refused.detail


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (b"relative", errno.EINVAL),
        (b"", errno.EINVAL),
        (b"/a\0b", errno.EINVAL),
        (b"/" + b"a/" * 3000, errno.ENAMETOOLONG),
    ],
)
def test_bad_paths_are_errors_of_their_channel_only(agent: Agent, path: bytes, number: int) -> None:
    calls = [agent.read, agent.stat, agent.list, agent.mkdir, agent.remove]
    for call in calls:
        refused = refusal(call, path)
        assert (refused.errno, refused.what) == (number, "path")
    assert refusal(agent.write, path, b"").errno == number
    agent.ping()


def test_names_that_are_not_utf8_work(agent: Agent, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9\xff"
    agent.write(path, b"data")
    assert agent.read(path) == b"data"
    assert agent.stat(path).name == b"caf\xe9\xff"
    assert [entry.name for entry in agent.list(tmp_path)] == [b"caf\xe9\xff"]


# ---- write ----


@pytest.mark.parametrize("size", [0, 1, 1024, 99_999, 100_000, 5 << 20])
def test_a_file_is_written_exactly(agent: Agent, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    assert agent.write(tmp_path / "file", content) == size
    assert (tmp_path / "file").read_bytes() == content


def test_a_file_is_written_in_many_small_pieces(agent: Agent, tmp_path: Path) -> None:
    content = os.urandom(50_000)
    channel = agent.ask(Type.WRITE, struct.pack("<II", 0, 0o644) + packed(tmp_path / "file") + packed(content[:7]))
    agent.upload(channel, content[7:], 613)
    assert struct.unpack("<Q", agent.result(channel)[1]) == (50_000,)
    assert (tmp_path / "file").read_bytes() == content


def test_parent_directories_are_made(agent: Agent, tmp_path: Path) -> None:
    agent.write(tmp_path / "a/b/c/file", b"deep")
    assert (tmp_path / "a/b/c/file").read_bytes() == b"deep"
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o777, 0o666, 0o400])
def test_a_new_file_has_the_mode_asked_for(agent: Agent, tmp_path: Path, mode: int) -> None:
    agent.write(tmp_path / "file", b"x", mode=mode)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_an_existing_file_is_replaced_and_keeps_its_mode(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "script").write_bytes(b"a long first content")
    (tmp_path / "script").chmod(0o755)
    agent.write(tmp_path / "script", b"short")
    assert (tmp_path / "script").read_bytes() == b"short"
    assert stat.S_IMODE((tmp_path / "script").stat().st_mode) == 0o755


def test_append_adds_and_creates(agent: Agent, tmp_path: Path) -> None:
    agent.write(tmp_path / "log", b"one ", options=1)
    agent.write(tmp_path / "log", b"two", options=1)
    assert (tmp_path / "log").read_bytes() == b"one two"


def test_fail_if_there_leaves_the_file_alone(agent: Agent, tmp_path: Path) -> None:
    agent.write(tmp_path / "file", b"first", options=2)
    assert refusal(agent.write, tmp_path / "file", b"second", options=2).errno == errno.EEXIST
    assert (tmp_path / "file").read_bytes() == b"first"


def test_writing_goes_through_links_inside(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("made")
    agent.write(tmp_path / "link", b"new")
    agent.write(tmp_path / "dangling", b"fresh")
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "made").read_bytes() == b"fresh"
    assert (tmp_path / "link").is_symlink()


def test_a_file_in_the_way_of_a_parent_is_an_error(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert refusal(agent.write, tmp_path / "file/below", b"y").errno == errno.ENOTDIR


def test_a_write_that_fails_midway_is_told_once_and_later_pieces_are_ignored(agent: Agent, tmp_path: Path) -> None:
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (5000, 5000))
    channel = agent.ask(Type.WRITE, struct.pack("<II", 0, 0o644) + packed(tmp_path / "file") + packed(b""))
    agent.upload(channel, b"x" * 10_000, 1000)
    refused = refusal(agent.result, channel)
    assert (refused.errno, refused.what) == (errno.EFBIG, "write")
    agent.ping()
    assert agent.waiting == []


def test_a_write_can_be_cancelled(agent: Agent, tmp_path: Path) -> None:
    channel = agent.ask(Type.WRITE, struct.pack("<II", 0, 0o644) + packed(tmp_path / "file") + packed(b"start"))
    agent.send(channel, Type.CANCEL)
    assert refusal(agent.result, channel).errno == errno.ECANCELED
    assert agent.read(tmp_path / "file") == b"start"


@needs_root
def test_new_files_and_directories_belong_to_the_default_user(agent: Agent, tmp_path: Path) -> None:
    agent.config("1234")
    (tmp_path / "old").write_bytes(b"root's")
    agent.write(tmp_path / "made/file", b"x")
    agent.mkdir(tmp_path / "a/b", 0o700)
    agent.write(tmp_path / "old", b"still root's")
    owners = [(tmp_path / name).stat().st_uid for name in ("made", "made/file", "a", "a/b", "old")]
    assert owners == [1234, 1234, 1234, 1234, 0]


@needs_root
def test_another_users_file_in_a_sticky_directory_can_be_replaced(agent: Agent, tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    os.chown(tmp_path, 4321, 4321)
    (tmp_path / "file").write_bytes(b"x")
    os.chown(tmp_path / "file", 1234, 1234)
    agent.write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@needs_root
def test_a_default_user_that_does_not_exist_is_named(agent: Agent, tmp_path: Path) -> None:
    agent.config("no-such-user")
    refused = refusal(agent.write, tmp_path / "file", b"x")
    assert (refused.what, refused.detail) == ("user", b"no-such-user")


# ---- stat, mkdir, rename ----


def test_stat_tells_what_is_there(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.utime(tmp_path / "file", ns=(1, 1_600_000_000_123_456_789))
    entry = agent.stat(tmp_path / "file")
    assert (entry.size, entry.mtime_ns, entry.name) == (5, 1_600_000_000_123_456_789, b"file")
    assert (entry.mode, entry.uid, entry.gid) == ((tmp_path / "file").stat().st_mode, os.geteuid(), os.getegid())


def test_stat_follows_links_only_if_asked(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert stat.S_ISLNK(agent.stat(tmp_path / "link", follow=False).mode)
    assert refusal(agent.stat, tmp_path / "link").errno == errno.ENOENT


@pytest.mark.parametrize(("path", "name"), [("/", b"/"), ("/proc/", b"proc"), ("/proc//self/..", b"..")])
def test_stat_gives_the_last_component(agent: Agent, path: str, name: bytes) -> None:
    assert agent.stat(path).name == name


def test_mkdir_makes_parents_and_accepts_what_is_there(agent: Agent, tmp_path: Path) -> None:
    agent.mkdir(tmp_path / "a/b/c/", 0o777)
    agent.mkdir(tmp_path / "a/b/c", 0o700)
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == 0o777
    (tmp_path / "file").write_bytes(b"")
    assert refusal(agent.mkdir, tmp_path / "file").errno == errno.ENOTDIR
    assert refusal(agent.mkdir, tmp_path / "file/below").errno == errno.ENOTDIR


def test_rename_replaces_a_file(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    agent.rename(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_bytes() == b"a"


def test_rename_says_which_side_is_wrong(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    assert refusal(agent.rename, tmp_path / "missing", tmp_path / "b").what == "source"
    assert refusal(agent.rename, tmp_path / "a", tmp_path / "missing/b").what == "target"
    assert refusal(agent.rename, "relative", tmp_path / "b").what == "source"


# ---- many at once, and nonsense ----


def test_many_requests_on_one_stream_are_all_answered(agent: Agent, tmp_path: Path) -> None:
    contents = {i: os.urandom(100_000 + i) for i in range(40)}
    for i, content in contents.items():
        (tmp_path / str(i)).write_bytes(content)
    channels = {}

    def ask() -> None:
        for i in contents:
            request = struct.pack("<QQQ", 0, TO_THE_END, PLENTY) + packed(tmp_path / str(i))
            channels[i] = agent.ask(Type.READ, request)

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    for i, content in contents.items():
        assert agent.result(channels[i])[0] == content


def test_endless_downloads_share_the_stream(agent: Agent, tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    request = struct.pack("<QQQ", 0, TO_THE_END, PLENTY) + packed(tmp_path / "sparse")
    got = {agent.ask(Type.READ, request): 0 for _ in range(12)}
    while min(got.values()) < 4 << 20:
        frame = agent.receive()
        got[frame.channel] += len(frame.payload)
    assert max(got.values()) < 16 << 20


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Type.READ, b"short"),
        (Type.WRITE, struct.pack("<II", 4, 0) + packed("/x") + packed(b"")),
        (Type.STAT, struct.pack("<I", 1) + packed("/x") + b"trailing"),
        (Type.LIST, struct.pack("<QI", 1, 99) + b"/x"),
        (Type.MKDIR, b""),
        (Type.REMOVE, struct.pack("<I", 2) + packed("/x")),
        (Type.RENAME, packed("/x")),
    ],
)
def test_a_malformed_request_ends_the_connection(agent: Agent, kind: Type, payload: bytes) -> None:
    agent.ask(kind, payload, END_FLAG)
    frame = agent.receive()
    assert (frame.channel, frame.type) == (0, Type.ERROR)
    with pytest.raises(EOFError):
        agent.receive()
