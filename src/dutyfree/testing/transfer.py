"""Trees in and out."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.testing.base import Suite


def tree(root: Path) -> Path:
    """A small tree with modes, links, an empty directory and strange names."""
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "file").write_bytes(b"content")
    (root / "tool").write_bytes(b"#!/bin/sh\necho tool\n")
    (root / "tool").chmod(0o755)
    (root / "sub" / "deep" / "zeros").write_bytes(bytes(300_000))
    (root / "sub" / "link").symlink_to("../file")
    (root / ("n" * 150)).write_bytes(b"long name")
    (root / os.fsdecode(b"strange \xff")).write_bytes(b"strange name")
    return root


def contents(root: Path) -> dict[str, object]:
    """Collect a tree: bytes and the owner's execute bit of files, targets of links, None for directories."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = None
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
    return found


class TransferSuite(Suite):
    async def test_a_file_is_uploaded_to_exactly_where_it_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "local").write_bytes(b"data")
        async with self.box() as box:
            remote = f"{self.scratch(box)}/new/place"
            await box.upload(tmp_path / "local", remote)
            assert await box.read(remote) == b"data"

    async def test_a_tree_comes_back_as_it_went(self, tmp_path: Path) -> None:
        local = tree(tmp_path / "local")
        async with self.box() as box:
            remote = f"{self.scratch(box)}/tree"
            await box.upload(local, remote)
            await box.download(remote, tmp_path / "back")
        assert contents(tmp_path / "back") == contents(local)

    async def test_paths_may_be_strings(self, tmp_path: Path) -> None:
        (tmp_path / "local").write_bytes(b"data")
        async with self.box() as box:
            remote = f"{self.scratch(box)}/file"
            await box.upload(str(tmp_path / "local"), remote)
            await box.download(remote, str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == b"data"

    async def test_an_uploaded_program_keeps_its_mode_and_links_stay_links(self, tmp_path: Path) -> None:
        async with self.box() as box:
            remote = f"{self.scratch(box)}/tree"
            await box.upload(tree(tmp_path / "local"), remote)
            assert (await box.run([f"{remote}/tool"])).stdout == b"tool\n"
            assert (await box.stat(f"{remote}/sub/link", follow=False)).kind == "symlink"
            assert (await box.stat(f"{remote}/empty")).kind == "directory"

    async def test_a_large_file_is_transferred_both_ways(self, tmp_path: Path) -> None:
        data = bytes(range(256)) * (16 << 12)
        (tmp_path / "local").write_bytes(data)
        async with self.box() as box:
            remote = f"{self.scratch(box)}/large"
            await box.upload(tmp_path / "local", remote)
            await box.download(remote, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data

    async def test_a_download_refuses_a_place_that_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_bytes(b"mine")
        async with self.box() as box:
            remote = f"{self.scratch(box)}/file"
            await box.write(remote, b"theirs")
            with pytest.raises(Misuse, match="local"):
                await box.download(remote, tmp_path / "taken")
        assert (tmp_path / "taken").read_bytes() == b"mine"

    async def test_a_download_of_nothing_is_file_not_found_and_leaves_nothing(self, tmp_path: Path) -> None:
        async with self.box() as box:
            with pytest.raises(FileNotFoundError):
                await box.download(f"{self.scratch(box)}/nothing", tmp_path / "back")
        assert list(tmp_path.iterdir()) == []

    async def test_a_download_beyond_its_limit_is_misuse_and_leaves_nothing(self, tmp_path: Path) -> None:
        async with self.box() as box:
            await box.write(f"{self.scratch(box)}/tree/file", b"x" * 10_000)
            with pytest.raises(Misuse, match="limit_bytes"):
                await box.download(f"{self.scratch(box)}/tree", tmp_path / "back", limit_bytes=9_999)
        assert list(tmp_path.iterdir()) == []

    async def test_a_download_never_leads_outside(self, tmp_path: Path) -> None:
        async with self.box() as box:
            remote = f"{self.scratch(box)}/hostile"
            await box.write(f"{remote}/dir/file", b"inside")
            script = f"cd {remote} && ln -s /etc/passwd absolute && ln -s ../../../../etc above && mkfifo fifo && ln -s file dir/ok"
            assert (await box.run(script)).ok
            await box.download(remote, tmp_path / "back")
        root = (tmp_path / "back").resolve()
        for path in root.rglob("*"):
            assert path.resolve().is_relative_to(root)
            assert path.is_symlink() or path.is_dir() or path.is_file()
        assert (root / "dir" / "ok").read_bytes() == b"inside"

    async def test_an_upload_of_what_is_not_there_is_file_not_found(self, tmp_path: Path) -> None:
        async with self.box() as box:
            with pytest.raises(FileNotFoundError):
                await box.upload(tmp_path / "nothing", f"{self.scratch(box)}/x")

    async def test_remote_paths_must_be_absolute(self, tmp_path: Path) -> None:
        (tmp_path / "local").write_bytes(b"")
        async with self.box() as box:
            with pytest.raises(Misuse, match="remote"):
                await box.upload(tmp_path / "local", "relative")
            with pytest.raises(Misuse, match="remote"):
                await box.download("relative", tmp_path / "back")
