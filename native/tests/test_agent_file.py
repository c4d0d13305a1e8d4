"""The agent's file requests, frame by frame, on the plain and the sanitised build."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import struct
from pathlib import Path

import pytest
from frames import END_FLAG, PLENTY, TO_THE_END, Type, pack_bytes
from peer import Peer, refusal

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root: sudo make test")


# ---- read ----


@pytest.mark.parametrize("size", [0, 1, 1024, 65536, 1 << 20, (3 << 20) + 17])
def test_a_file_is_read_exactly(peer: Peer, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert peer.read(tmp_path / "file") == content


def test_end_tells_the_size_of_the_file(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    channel = peer.ask(Type.READ, struct.pack("<QQQ", 10, 20, PLENTY) + pack_bytes(tmp_path / "file"))
    data, end = peer.result(channel)
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
def test_a_part_of_a_file_is_read(peer: Peer, tmp_path: Path, offset: int, length: int, expected: bytes) -> None:
    (tmp_path / "file").write_bytes(b"abcdef")
    assert peer.read(tmp_path / "file", offset, length) == expected


def test_an_offset_beyond_the_largest_file_is_refused(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert refusal(peer.read, tmp_path / "file", 2**63).what == "offset"


def test_a_part_of_a_sparse_tebibyte_is_read(peer: Peer, tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.seek(1 << 40)
        file.write(b"end")
    assert peer.read(tmp_path / "sparse", (1 << 40) - 2, 10) == b"\0\0end"


def test_a_whole_sparse_tebibyte_stops_at_the_window_and_can_be_cancelled(peer: Peer, tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    channel = peer.ask(Type.READ, struct.pack("<QQQ", 0, TO_THE_END, 100_000) + pack_bytes(tmp_path / "sparse"))
    peer.ping()
    assert len(peer.kept(channel)) == 100_000
    peer.send(channel, Type.CANCEL)
    assert refusal(peer.result, channel).errno == errno.ECANCELED


def test_reading_stops_without_credit_and_goes_on_with_it(peer: Peer, tmp_path: Path) -> None:
    content = os.urandom(10_000)
    (tmp_path / "file").write_bytes(content)
    channel = peer.ask(Type.READ, struct.pack("<QQQ", 0, TO_THE_END, 0) + pack_bytes(tmp_path / "file"))
    got = b""
    while len(got) < len(content):
        peer.ping()
        assert not [frame for frame in peer.waiting if frame.channel == channel]
        peer.grant(channel, 3000)
        got += peer.receive(channel).payload
    assert got == content
    assert peer.receive(channel).type == Type.END


def test_a_file_that_grows_is_read_up_to_its_first_size(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 1000)
    channel = peer.ask(Type.READ, struct.pack("<QQQ", 0, TO_THE_END, 500) + pack_bytes(tmp_path / "file"))
    first = peer.receive(channel).payload
    with open(tmp_path / "file", "ab") as file:
        file.write(b"b" * 1000)
    peer.grant(channel)
    assert first + peer.result(channel)[0] == b"a" * 1000


def test_a_file_that_shrinks_ends_early(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 1000)
    channel = peer.ask(Type.READ, struct.pack("<QQQ", 0, TO_THE_END, 500) + pack_bytes(tmp_path / "file"))
    first = peer.receive(channel).payload
    os.truncate(tmp_path / "file", 600)
    peer.grant(channel)
    assert len(first + peer.result(channel)[0]) == 600


def test_a_proc_file_is_read_although_its_size_is_zero(peer: Peer) -> None:
    assert b"MemTotal" in peer.read("/proc/meminfo")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_socket])
def test_fifos_and_sockets_are_neither_read_nor_written(peer: Peer, tmp_path: Path, make: object) -> None:
    make(tmp_path / "odd")  # type: ignore[operator]
    reading = refusal(peer.read, tmp_path / "odd")
    writing = refusal(peer.write, tmp_path / "odd", b"x")
    for refused in (reading, writing):
        assert refused.errno in (errno.EINVAL, errno.ENXIO)
        assert refused.detail.endswith(b"not a regular file")


def test_a_fifo_with_a_reader_is_not_written(peer: Peer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert refusal(peer.write, tmp_path / "fifo", b"x").errno == errno.EINVAL
        assert os.read(reader, 10) == b""
    finally:
        os.close(reader)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/ptmx"])
def test_devices_are_neither_read_nor_written(peer: Peer, path: str) -> None:
    assert refusal(peer.read, path).errno == errno.EINVAL
    assert refusal(peer.write, path, b"x").errno == errno.EINVAL


def test_a_directory_is_not_a_file(peer: Peer, tmp_path: Path) -> None:
    assert refusal(peer.read, tmp_path).errno == errno.EISDIR
    assert refusal(peer.write, tmp_path, b"x").errno == errno.EISDIR


def test_a_missing_file_is_named_in_the_error(peer: Peer, tmp_path: Path) -> None:
    refused = refusal(peer.read, tmp_path / "missing")
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
def test_bad_paths_are_errors_of_their_channel_only(peer: Peer, path: bytes, number: int) -> None:
    calls = [peer.read, peer.stat, peer.list, peer.mkdir, peer.remove]
    for call in calls:
        refused = refusal(call, path)
        assert (refused.errno, refused.what) == (number, "path")
    assert refusal(peer.write, path, b"").errno == number
    peer.ping()


def test_names_that_are_not_utf8_work(peer: Peer, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9\xff"
    peer.write(path, b"data")
    assert peer.read(path) == b"data"
    assert peer.stat(path).name == b"caf\xe9\xff"
    assert [entry.name for entry in peer.list(tmp_path)] == [b"caf\xe9\xff"]


# ---- write ----


@pytest.mark.parametrize("size", [0, 1, 1024, 99_999, 100_000, 5 << 20])
def test_a_file_is_written_exactly(peer: Peer, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    assert peer.write(tmp_path / "file", content) == size
    assert (tmp_path / "file").read_bytes() == content


def test_a_file_is_written_in_many_small_pieces(peer: Peer, tmp_path: Path) -> None:
    content = os.urandom(50_000)
    channel = peer.ask(
        Type.WRITE, struct.pack("<II", 0, 0o644) + pack_bytes(tmp_path / "file") + pack_bytes(content[:7])
    )
    peer.upload(channel, content[7:], 613)
    assert struct.unpack("<Q", peer.result(channel)[1]) == (50_000,)
    assert (tmp_path / "file").read_bytes() == content


def test_parent_directories_are_made(peer: Peer, tmp_path: Path) -> None:
    peer.write(tmp_path / "a/b/c/file", b"deep")
    assert (tmp_path / "a/b/c/file").read_bytes() == b"deep"
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o777, 0o666, 0o400])
def test_a_new_file_has_the_mode_asked_for(peer: Peer, tmp_path: Path, mode: int) -> None:
    peer.write(tmp_path / "file", b"x", mode=mode)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_an_existing_file_is_replaced_and_keeps_its_mode(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "script").write_bytes(b"a long first content")
    (tmp_path / "script").chmod(0o755)
    peer.write(tmp_path / "script", b"short")
    assert (tmp_path / "script").read_bytes() == b"short"
    assert stat.S_IMODE((tmp_path / "script").stat().st_mode) == 0o755


def test_append_adds_and_creates(peer: Peer, tmp_path: Path) -> None:
    peer.write(tmp_path / "log", b"one ", options=1)
    peer.write(tmp_path / "log", b"two", options=1)
    assert (tmp_path / "log").read_bytes() == b"one two"


def test_fail_if_there_leaves_the_file_alone(peer: Peer, tmp_path: Path) -> None:
    peer.write(tmp_path / "file", b"first", options=2)
    assert refusal(peer.write, tmp_path / "file", b"second", options=2).errno == errno.EEXIST
    assert (tmp_path / "file").read_bytes() == b"first"


def test_writing_goes_through_links_inside(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("made")
    peer.write(tmp_path / "link", b"new")
    peer.write(tmp_path / "dangling", b"fresh")
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "made").read_bytes() == b"fresh"
    assert (tmp_path / "link").is_symlink()


def test_a_file_in_the_way_of_a_parent_is_an_error(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert refusal(peer.write, tmp_path / "file/below", b"y").errno == errno.ENOTDIR


def test_a_write_that_fails_midway_is_told_once_and_later_pieces_are_ignored(peer: Peer, tmp_path: Path) -> None:
    resource.prlimit(peer.process.pid, resource.RLIMIT_FSIZE, (5000, 5000))
    channel = peer.ask(Type.WRITE, struct.pack("<II", 0, 0o644) + pack_bytes(tmp_path / "file") + pack_bytes(b""))
    peer.upload(channel, b"x" * 10_000, 1000)
    refused = refusal(peer.result, channel)
    assert (refused.errno, refused.what) == (errno.EFBIG, "write")
    peer.ping()
    assert peer.waiting == []


def test_a_write_can_be_cancelled(peer: Peer, tmp_path: Path) -> None:
    channel = peer.ask(Type.WRITE, struct.pack("<II", 0, 0o644) + pack_bytes(tmp_path / "file") + pack_bytes(b"start"))
    peer.send(channel, Type.CANCEL)
    assert refusal(peer.result, channel).errno == errno.ECANCELED
    assert peer.read(tmp_path / "file") == b"start"


@needs_root
def test_new_files_and_directories_belong_to_the_default_user(peer: Peer, tmp_path: Path) -> None:
    peer.config(user="1234")
    (tmp_path / "old").write_bytes(b"root's")
    peer.write(tmp_path / "made/file", b"x")
    peer.mkdir(tmp_path / "a/b", 0o700)
    peer.write(tmp_path / "old", b"still root's")
    owners = [(tmp_path / name).stat().st_uid for name in ("made", "made/file", "a", "a/b", "old")]
    assert owners == [1234, 1234, 1234, 1234, 0]


@needs_root
def test_another_users_file_in_a_sticky_directory_can_be_replaced(peer: Peer, tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    os.chown(tmp_path, 4321, 4321)
    (tmp_path / "file").write_bytes(b"x")
    os.chown(tmp_path / "file", 1234, 1234)
    peer.write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@needs_root
def test_a_default_user_that_does_not_exist_is_named(peer: Peer, tmp_path: Path) -> None:
    peer.config(user="no-such-user")
    refused = refusal(peer.write, tmp_path / "file", b"x")
    assert (refused.what, refused.detail) == ("user", b"no-such-user")


# ---- stat, mkdir, rename ----


def test_stat_tells_what_is_there(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.utime(tmp_path / "file", ns=(1, 1_600_000_000_123_456_789))
    entry = peer.stat(tmp_path / "file")
    assert (entry.size, entry.mtime_ns, entry.name) == (5, 1_600_000_000_123_456_789, b"file")
    assert (entry.mode, entry.uid, entry.gid) == ((tmp_path / "file").stat().st_mode, os.geteuid(), os.getegid())


def test_stat_follows_links_only_if_asked(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert stat.S_ISLNK(peer.stat(tmp_path / "link", follow=False).mode)
    assert refusal(peer.stat, tmp_path / "link").errno == errno.ENOENT


@pytest.mark.parametrize(("path", "name"), [("/", b"/"), ("/proc/", b"proc"), ("/proc//self/..", b"..")])
def test_stat_gives_the_last_component(peer: Peer, path: str, name: bytes) -> None:
    assert peer.stat(path).name == name


def test_mkdir_makes_parents_and_accepts_what_is_there(peer: Peer, tmp_path: Path) -> None:
    peer.mkdir(tmp_path / "a/b/c/", 0o777)
    peer.mkdir(tmp_path / "a/b/c", 0o700)
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == 0o777
    (tmp_path / "file").write_bytes(b"")
    assert refusal(peer.mkdir, tmp_path / "file").errno == errno.ENOTDIR
    assert refusal(peer.mkdir, tmp_path / "file/below").errno == errno.ENOTDIR


def test_rename_replaces_a_file(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    peer.rename(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_bytes() == b"a"


def test_rename_says_which_side_is_wrong(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    assert refusal(peer.rename, tmp_path / "missing", tmp_path / "b").what == "source"
    assert refusal(peer.rename, tmp_path / "a", tmp_path / "missing/b").what == "target"
    assert refusal(peer.rename, "relative", tmp_path / "b").what == "source"


# ---- many at once, and nonsense ----


def test_many_requests_on_one_stream_are_all_answered(peer: Peer, tmp_path: Path) -> None:
    contents = {i: os.urandom(100_000 + i) for i in range(40)}
    for i, content in contents.items():
        (tmp_path / str(i)).write_bytes(content)
    whole = struct.pack("<QQQ", 0, TO_THE_END, PLENTY)
    channels = {i: peer.ask(Type.READ, whole + pack_bytes(tmp_path / str(i))) for i in contents}
    for i, content in contents.items():
        assert peer.result(channels[i])[0] == content


def test_endless_downloads_share_the_stream(peer: Peer, tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    request = struct.pack("<QQQ", 0, TO_THE_END, PLENTY) + pack_bytes(tmp_path / "sparse")
    got = {peer.ask(Type.READ, request): 0 for _ in range(12)}
    while min(got.values()) < 4 << 20:
        frame = peer.receive()
        got[frame.channel] += len(frame.payload)
    assert max(got.values()) < 16 << 20


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Type.READ, b"short"),
        (Type.WRITE, struct.pack("<II", 4, 0) + pack_bytes("/x") + pack_bytes(b"")),
        (Type.STAT, struct.pack("<I", 1) + pack_bytes("/x") + b"trailing"),
        (Type.LIST, struct.pack("<QI", 1, 99) + b"/x"),
        (Type.MKDIR, b""),
        (Type.REMOVE, struct.pack("<I", 2) + pack_bytes("/x")),
        (Type.RENAME, pack_bytes("/x")),
    ],
)
def test_a_malformed_request_ends_the_connection(peer: Peer, kind: Type, payload: bytes) -> None:
    peer.ask(kind, payload, END_FLAG)
    frame = peer.receive()
    assert (frame.channel, frame.type) == (0, Type.ERROR)
    with pytest.raises(EOFError):
        peer.receive()


# ---- rights ----


def _as(user: str) -> bytes:
    return pack_bytes(user)


@needs_root
def test_a_request_that_names_a_user_has_that_users_rights_and_the_next_has_not(peer: Peer, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:3]:
        above.chmod(0o755)
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    secret.chmod(0o600)
    request = struct.pack("<QQQ", 0, 100, PLENTY) + pack_bytes(secret)
    assert refusal(peer.result, peer.ask(Type.READ, request + _as("65534:65534"))).errno == errno.EACCES
    assert peer.read(secret) == b"secret"
    write = struct.pack("<II", 4, 0o644) + pack_bytes(tmp_path / "new") + _as("65534:65534") + pack_bytes(b"data")
    assert refusal(peer.result, peer.ask(Type.WRITE, write, END_FLAG)).errno == errno.EACCES
    tmp_path.chmod(0o777)
    peer.result(peer.ask(Type.WRITE, write, END_FLAG))
    assert (tmp_path / "new").stat().st_uid == 65534
    nobody = struct.pack("<I", 0) + pack_bytes(secret) + _as("no-such-user")
    assert refusal(peer.result, peer.ask(Type.STAT, nobody)).what == "user"
