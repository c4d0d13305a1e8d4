"""Listings and removals, frame by frame: wide, deep and with links, on the plain and the sanitised build."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

import pytest
from archives import deep_tree
from frames import Type, entries_in, pack_bytes
from peer import Peer, refusal

# ---- list ----


def test_list_gives_every_entry_once(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    kinds = {entry.name: stat.S_IFMT(entry.mode) for entry in peer.list(tmp_path)}
    assert kinds == {b"file": stat.S_IFREG, b"directory": stat.S_IFDIR, b"link": stat.S_IFLNK, b"fifo": stat.S_IFIFO}


def test_an_empty_directory_needs_no_credit(peer: Peer, tmp_path: Path) -> None:
    channel = peer.ask(Type.LIST, struct.pack("<Q", 0) + pack_bytes(tmp_path))
    assert peer.result(channel) == (b"", b"")


def test_list_of_a_file_is_an_error(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert refusal(peer.list, tmp_path / "file").errno == errno.ENOTDIR


def test_a_large_listing_comes_in_whole_entries_as_credit_allows(peer: Peer, quick_path: Path) -> None:
    names = {f"{i:05}-{'n' * (i % 200)}".encode() for i in range(5000)}
    for name in names:
        os.close(os.open(os.fsencode(quick_path) + b"/" + name, os.O_CREAT | os.O_WRONLY))
    channel = peer.ask(Type.LIST, struct.pack("<Q", 1000) + pack_bytes(quick_path))
    found = []
    while (frame := peer.receive(channel)).type == Type.DATA:
        assert len(frame.payload) <= 1000
        found += [entry.name for entry in entries_in(frame.payload)]
        peer.grant(channel, len(frame.payload))
    assert frame.type == Type.END
    assert len(found) == len(names)
    assert set(found) == names


def test_a_listing_can_be_cancelled_and_the_channel_used_again(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    channel = peer.ask(Type.LIST, struct.pack("<Q", 0) + pack_bytes(tmp_path))
    peer.send(channel, Type.CANCEL)
    assert refusal(peer.result, channel).errno == errno.ECANCELED
    peer.send(channel, Type.PING, b"again")
    assert peer.result(channel)[1] == b"again"


# ---- remove ----


def test_remove_takes_files_links_and_empty_directories(peer: Peer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "file").write_bytes(b"")
    (inside / "empty").mkdir()
    peer.remove(f"{inside}/link/", recursive=True)
    peer.remove(inside / "file")
    peer.remove(inside / "empty")
    assert list(inside.iterdir()) == []
    assert (outside / "kept").exists()


def test_remove_of_a_full_directory_needs_recursive(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    assert refusal(peer.remove, tmp_path / "a").errno == errno.ENOTEMPTY
    peer.remove(tmp_path / "a", recursive=True)
    assert not (tmp_path / "a").exists()
    assert refusal(peer.remove, tmp_path / "a", recursive=True).errno == errno.ENOENT


@pytest.mark.parametrize("path", ["/", "//", "{}/.", "{}/a/..", "/.."])
def test_remove_refuses_the_root_and_dots(peer: Peer, tmp_path: Path, path: str) -> None:
    (tmp_path / "a").mkdir()
    assert refusal(peer.remove, path.format(tmp_path), recursive=True).errno == errno.EBUSY
    assert (tmp_path / "a").exists()


def test_a_tree_is_removed_without_following_its_links(peer: Peer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"")
    tree = tmp_path / "tree"
    for i in range(20):
        (tree / f"{i}/sub").mkdir(parents=True)
        (tree / f"{i}/sub/link").symlink_to(outside)
        (tree / f"{i}/sub/file").write_bytes(b"x")
        os.mkfifo(tree / f"{i}/fifo")
    peer.remove(tree, recursive=True)
    assert not tree.exists()
    assert (outside / "kept").exists()


def test_a_tree_of_a_hundred_thousand_levels_is_removed(peer: Peer, quick_path: Path) -> None:
    (quick_path / "tree").mkdir()
    deep_tree(quick_path / "tree", 100_000)
    peer.remove(quick_path / "tree", recursive=True)
    assert list(quick_path.iterdir()) == []


def test_a_wide_tree_is_removed(peer: Peer, quick_path: Path) -> None:
    for i in range(3):
        (quick_path / f"tree/{i}").mkdir(parents=True)
        for j in range(5000):
            os.close(os.open(quick_path / f"tree/{i}/{j}", os.O_CREAT | os.O_WRONLY))
    peer.remove(quick_path / "tree", recursive=True)
    assert list(quick_path.iterdir()) == []
