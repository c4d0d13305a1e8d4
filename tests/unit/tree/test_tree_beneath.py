"""What hostile code may leave is deleted, whatever its shape, and nothing else."""

import os

import pytest

from dutyfree.tree.beneath import delete_tree


def deep(top, depth):
    """Nested directories, deeper than any path can name."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("f", os.O_CREAT, dir_fd=fd))
    os.close(fd)


def test_a_tree_deeper_than_a_path_or_the_stack(tmp_path):
    (tmp_path / "t").mkdir()
    deep(tmp_path / "t", 10_000)
    before = set(os.listdir("/proc/self/fd"))
    delete_tree(tmp_path / "t")
    assert not any(tmp_path.iterdir())
    assert set(os.listdir("/proc/self/fd")) == before


def test_links_pipes_and_odd_names_go_and_what_links_point_to_stays(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("here")
    top = tmp_path / "t"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "link").symlink_to(kept)
    (top / "a" / "b" / "file").symlink_to(kept / "file")
    (top / os.fsdecode(b"\xff\n")).mkdir()
    os.mkfifo(top / "a" / "pipe")
    delete_tree(top)
    assert not top.exists()
    assert (kept / "file").read_text() == "here"


def test_directories_that_permit_nothing(tmp_path):
    top = tmp_path / "t"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "f").touch()
    for path in (top / "a" / "b", top / "a", top):
        path.chmod(0)
    delete_tree(top)
    assert not top.exists()


def test_a_link_in_the_place_of_the_tree_is_refused(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="t"):
        delete_tree(tmp_path / "t")
    assert (tmp_path / "kept").exists()


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        delete_tree(tmp_path / "absent")
