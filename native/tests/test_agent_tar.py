"""Trees through TAR_IN and TAR_OUT, compared with Python's tarfile, on the plain and the sanitised build."""

from __future__ import annotations

import errno
import io
import os
import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import deep_tree, random_tree, seen, unpacked
from frames import Type, pack_bytes
from peer import Peer, refusal

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test")
FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}


# ---- out ----


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_comes_out_as_tarfile_reads_it(peer: Peer, tmp_path: Path, seed: int) -> None:
    (tmp_path / "tree").mkdir()
    random_tree(tmp_path / "tree", seed)
    archive = peer.tar_out(tmp_path / "tree")
    unpacked(archive, tmp_path / "copy")
    expected = seen(tmp_path / "tree")
    got = seen(tmp_path / "copy", times=True)
    assert got.keys() == expected.keys()
    with tarfile.open(fileobj=io.BytesIO(archive), errors="surrogateescape") as tar:
        moments = {info.name: info.mtime for info in tar}
    for name, wanted in expected.items():
        if wanted[0] == "directory":
            assert got[name] == wanted
        else:
            assert got[name][:-1] == wanted[:-1]
            assert abs(moments[os.fsdecode(name)] - int(str(wanted[-1])) / 1e9) < 1e-5


def test_gnu_tar_reads_what_comes_out(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    random_tree(tmp_path / "tree", 99)
    archive = peer.tar_out(tmp_path / "tree")
    (tmp_path / "copy").mkdir()
    command = [
        "tar",
        "-xpf",
        "-",
        "--warning=no-unknown-keyword",
        "--warning=no-timestamp",
        "-C",
        str(tmp_path / "copy"),
    ]
    subprocess.run(command, input=archive, check=True)
    assert seen(tmp_path / "copy") == seen(tmp_path / "tree")


def test_names_are_relative_and_the_root_is_a_dot(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(b"x")
    with tarfile.open(fileobj=io.BytesIO(peer.tar_out(tmp_path))) as tar:
        assert tar.getnames() == [".", "a", "a/b", "a/b/c"]


def test_one_file_comes_out_as_a_dot(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with tarfile.open(fileobj=io.BytesIO(peer.tar_out(tmp_path / "file"))) as tar:
        (info,) = tar.getmembers()
        content = tar.extractfile(info)
        assert info.name == "."
        assert content is not None
        assert content.read() == b"content"


def test_a_stream_ends_with_two_empty_blocks(peer: Peer, tmp_path: Path) -> None:
    archive = peer.tar_out(tmp_path)
    assert len(archive) % 512 == 0
    assert archive.endswith(bytes(1024))


def test_an_archive_leaves_no_descriptor_open(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "tree/below").mkdir(parents=True)
    for i in range(20):
        (tmp_path / f"tree/below/empty-{i}").write_bytes(b"")
        (tmp_path / f"tree/full-{i}").write_bytes(b"x" * i * 512)
    held = f"/proc/{peer.process.pid}/fd"
    before = len(os.listdir(held))
    archive = peer.tar_out(tmp_path / "tree")
    assert peer.tar_in(tmp_path / "copy", archive) == 42
    peer.tar_out(tmp_path / "tree/below/empty-0")
    assert len(os.listdir(held)) == before


def test_devices_fifos_and_sockets_are_left_out(peer: Peer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("fifo")
    with tarfile.open(fileobj=io.BytesIO(peer.tar_out(tmp_path))) as tar:
        assert sorted(tar.getnames()) == [".", "file", "link"]
    assert refusal(peer.tar_out, tmp_path / "fifo").errno == errno.EINVAL
    assert refusal(peer.tar_out, "/dev/zero").errno == errno.EINVAL
    assert refusal(peer.tar_out, tmp_path / "missing").errno == errno.ENOENT


@needs_root
def test_of_a_mounted_proc_only_the_mount_point_comes_out(
    program: Path, start: Callable[..., Peer], tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "later").write_bytes(b"")
    script = 'mount -t proc proc "$0" && exec "$@"'
    through = ("unshare", "--mount", "--propagation=private", "sh", "-c", script, str(tmp_path / "proc"))
    archive = start(program, through=through).tar_out(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert sorted(tar.getnames()) == [".", "later", "proc"]


def partly(peer: Peer, path: Path, window: int) -> tuple[int, bytes]:
    """Begins a TAR_OUT that stops at `window` bytes."""
    channel = peer.ask(Type.TAR_OUT, struct.pack("<Q", window) + pack_bytes(path))
    got = b""
    while len(got) < window:
        got += peer.receive(channel).payload
    return channel, got


def test_a_file_that_shrinks_is_filled_with_zeros(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 100_000)
    channel, first = partly(peer, tmp_path, 20_000)
    os.truncate(tmp_path / "file", 50_000)
    peer.grant(channel)
    archive = first + peer.result(channel)[0]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        content = tar.extractfile("file")
        assert content is not None
        assert content.read() == b"a" * 50_000 + bytes(50_000)


def test_a_file_that_grows_is_cut(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 100_000)
    channel, first = partly(peer, tmp_path, 20_000)
    with open(tmp_path / "file", "ab") as file:
        file.write(b"b" * 100_000)
    peer.grant(channel)
    archive = first + peer.result(channel)[0]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        content = tar.extractfile("file")
        assert content is not None
        assert content.read() == b"a" * 100_000


def test_what_goes_away_meanwhile_is_left_out(peer: Peer, tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"d{i}").mkdir()
        (tmp_path / f"d{i}/file").write_bytes(bytes(1000))
    channel, first = partly(peer, tmp_path, 5_000)
    for i in range(200):
        (tmp_path / f"d{i}/file").unlink()
        (tmp_path / f"d{i}").rmdir()
    peer.grant(channel)
    archive = first + peer.result(channel)[0]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert 0 < len(tar.getnames()) < 401


@pytest.mark.parametrize("piece", [1, 7, 511, 4096])
def test_a_stream_in_small_credits_is_the_same(peer: Peer, tmp_path: Path, piece: int) -> None:
    if piece > 7:
        random_tree(tmp_path, 3, "short")
    else:
        (tmp_path / "file").write_bytes(b"x" * 1500)
    whole = peer.tar_out(tmp_path)
    channel = peer.ask(Type.TAR_OUT, struct.pack("<Q", piece) + pack_bytes(tmp_path))
    got = b""
    while (frame := peer.receive(channel)).type == Type.DATA:
        assert len(frame.payload) <= piece
        got += frame.payload
        peer.grant(channel, len(frame.payload))
    assert frame.type == Type.END
    assert got == whole


def test_files_beyond_the_octal_limit_have_a_pax_size(peer: Peer, tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as file:
        file.truncate((8 << 30) + 5)
    channel, first = partly(peer, tmp_path / "huge", 4096)
    peer.send(channel, Type.CANCEL)
    assert refusal(peer.result, channel).errno == errno.ECANCELED
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        info = tar.next()
        assert info is not None
        assert info.size == (8 << 30) + 5


def test_times_before_the_epoch_survive(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"")
    os.utime(tmp_path / "old", ns=(0, -1_500_000_000))
    archive = peer.tar_out(tmp_path)
    peer.tar_in(tmp_path / "copy", archive)
    assert (tmp_path / "copy/old").stat().st_mtime_ns == -1_500_000_000


# ---- out and in again ----


@pytest.mark.parametrize("seed", range(4))
def test_out_and_in_again_keeps_everything(peer: Peer, tmp_path: Path, seed: int) -> None:
    (tmp_path / "tree").mkdir()
    random_tree(tmp_path / "tree", 100 + seed)
    peer.tar_in(tmp_path / "copy", peer.tar_out(tmp_path / "tree"))
    assert seen(tmp_path / "copy") == seen(tmp_path / "tree")


# ---- deep ----


def test_a_tree_of_thousands_of_levels_goes_out_and_in(peer: Peer, quick_path: Path) -> None:
    (quick_path / "tree").mkdir()
    deep_tree(quick_path / "tree", 3000)
    archive = peer.tar_out(quick_path / "tree")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = tar.getnames()
    assert len(names) == 3002
    assert names[-1] == "d/" * 3000 + "bottom"
    assert peer.tar_in(quick_path / "copy", archive) == 3002
    assert peer.tar_out(quick_path / "copy").count(b"bottom") == archive.count(b"bottom")
    peer.remove(quick_path / "tree", recursive=True)
    peer.remove(quick_path / "copy", recursive=True)


def test_a_walk_that_comes_back_from_the_deep_misses_nothing(peer: Peer, quick_path: Path) -> None:
    at = quick_path / "tree"
    for depth in range(150):
        at.mkdir()
        for i in range(30):
            (at / f"file-{depth}-{i}").write_bytes(b"")
        at = at / "d"
    with tarfile.open(fileobj=io.BytesIO(peer.tar_out(quick_path / "tree"))) as tar:
        names = tar.getnames()
    assert len(names) == len(set(names)) == 150 * 31
    peer.remove(quick_path / "tree", recursive=True)


def test_the_walk_refuses_to_come_back_to_another_place(peer: Peer, quick_path: Path) -> None:
    """The parent of a directory that was moved away is not the one the walk came from."""
    at = quick_path / "tree"
    for _ in range(100):
        at.mkdir()
        at = at / "d"
    (quick_path / "elsewhere").mkdir()
    (quick_path / "elsewhere/secret").write_bytes(b"")
    at.write_bytes(bytes(3 << 20))
    channel, first = partly(peer, quick_path / "tree", 2 << 20)
    (quick_path / ("tree" + "/d" * 20)).rename(quick_path / "elsewhere/d")
    peer.grant(channel)
    assert refusal(peer.result, channel).errno == errno.ESTALE
    assert b"secret" not in first
