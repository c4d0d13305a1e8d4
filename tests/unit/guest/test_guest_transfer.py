"""Trees in and out, with the real agent."""

import asyncio
import os
import stat
import tarfile

import pytest

from dutyfree.core.errors import Misuse, SandboxLost


def make_tree(root):
    root.mkdir()
    (root / "empty").mkdir()
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "deep" / "file").write_bytes(os.urandom(1_500_000))
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_bytes(b"x")
    (root / "secret").chmod(0o600)
    (root / "link").symlink_to("sub/deep/file")
    (root / "sub" / "up").symlink_to("../run.sh")
    (root / ("long" * 60)).mkdir()
    (root / ("long" * 60) / ("name" * 60)).write_bytes(b"long")
    (root / "ünïcode").write_bytes(b"u")
    os.close(os.open(os.fsencode(root) + b"/\xff\xfe", os.O_CREAT | os.O_WRONLY))
    return root


def described(root):
    found = {}
    for base, directories, files in os.walk(os.fsencode(root)):
        for name in directories + files:
            path = os.path.join(base, name)
            status = os.lstat(path)
            inside = os.path.relpath(path, os.fsencode(root))
            if stat.S_ISLNK(status.st_mode):
                found[inside] = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    found[inside] = (stat.S_IMODE(status.st_mode), int(status.st_mtime), file.read())
            else:
                found[inside] = stat.S_IMODE(status.st_mode)
    return found


async def test_a_tree_goes_in_and_comes_out_the_same(agent_box, tmp_path):
    source = make_tree(tmp_path / "source")
    async with agent_box() as box:
        await box.upload(source, f"{tmp_path}/inside/tree")
        assert described(tmp_path / "inside" / "tree") == described(source)
        await box.download(f"{tmp_path}/inside/tree", tmp_path / "back")
        assert described(tmp_path / "back") == described(source)
    assert sorted(os.listdir(tmp_path)) == ["back", "inside", "source"]


async def test_a_file_goes_in_and_comes_out_the_same(agent_box, tmp_path):
    data = os.urandom(3_000_000)
    (tmp_path / "f").write_bytes(data)
    (tmp_path / "f").chmod(0o750)
    async with agent_box() as box:
        await box.upload(tmp_path / "f", f"{tmp_path}/a/b/g")
        assert (tmp_path / "a/b/g").read_bytes() == data
        assert stat.S_IMODE((tmp_path / "a/b/g").stat().st_mode) == 0o750
        await box.download(f"{tmp_path}/a/b/g", str(tmp_path / "h"))
        assert (tmp_path / "h").read_bytes() == data
        assert stat.S_IMODE((tmp_path / "h").stat().st_mode) == 0o750


async def test_many_small_files_pass(agent_box, tmp_path):
    (tmp_path / "s").mkdir()
    for i in range(3000):
        (tmp_path / "s" / str(i)).write_bytes(str(i).encode())
    async with agent_box() as box:
        await box.upload(tmp_path / "s", f"{tmp_path}/t")
        await box.download(f"{tmp_path}/t", tmp_path / "u")
    assert described(tmp_path / "u") == described(tmp_path / "s")


async def test_links_that_lead_out_and_devices_are_left_out(agent_box, tmp_path):
    inside = tmp_path / "inside"
    (inside / "d").mkdir(parents=True)
    (inside / "absolute").symlink_to("/etc/passwd")
    (inside / "up").symlink_to("../elsewhere")
    (inside / "d" / "fine").symlink_to("../d")
    (inside / "sneaky").symlink_to("d/fine/../..")
    os.mkfifo(inside / "fifo")
    async with agent_box() as box:
        await box.download(str(inside), tmp_path / "out")
    assert described(tmp_path / "out") == {b"d": 0o755, b"d/fine": b"../d"}


async def test_a_download_over_the_limit_leaves_nothing(agent_box, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "sparse").touch()
    os.truncate(tmp_path / "in" / "sparse", 1 << 40)
    async with agent_box() as box:
        with pytest.raises(Misuse) as caught:
            await box.download(f"{tmp_path}/in", tmp_path / "out", limit_bytes=1000)
        assert caught.value.field == "limit_bytes"
        while box.link.channels:
            await box.link.ping()
        assert os.listdir(tmp_path) == ["in"]


async def test_what_is_not_there_is_an_os_error_and_leaves_nothing(agent_box, tmp_path):
    async with agent_box() as box:
        with pytest.raises(FileNotFoundError):
            await box.download(f"{tmp_path}/gone", tmp_path / "out")
        with pytest.raises(FileNotFoundError):
            await box.upload(tmp_path / "gone", "/tmp/x")
        with pytest.raises(FileNotFoundError):
            await box.download("/etc", tmp_path / "no" / "such" / "out")
        assert os.listdir(tmp_path) == []


async def test_an_upload_that_is_refused_says_why(agent_box, tmp_path):
    make_tree(tmp_path / "s")
    (tmp_path / "file").touch()
    async with agent_box() as box:
        with pytest.raises(OSError):
            await box.upload(tmp_path / "s", f"{tmp_path}/file/below")
        with pytest.raises(OSError):
            await box.upload(tmp_path / "s" / "sub" / "deep" / "file", f"{tmp_path}/file/below")
        await box.link.ping()


async def test_cancelled_transfers_leave_nothing(agent_box, tmp_path):
    source = make_tree(tmp_path / "s")
    (source / "big").write_bytes(bytes(30_000_000))
    async with agent_box() as box:
        await box.upload(source, f"{tmp_path}/t")
        for turns in (0, 1, 2, 5, 20):
            for transfer in (box.upload(source, f"{tmp_path}/x"), box.download(f"{tmp_path}/t", tmp_path / "out")):
                call = asyncio.ensure_future(transfer)
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                while box.link.channels:
                    await box.link.ping()
        assert not (tmp_path / "out").exists()
        assert {name for name in os.listdir(tmp_path) if name.startswith(".")} == set()


async def test_a_sandbox_that_dies_meanwhile_leaves_nothing(agent_box, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "big").write_bytes(bytes(60_000_000))
    async with agent_box() as box:
        call = asyncio.ensure_future(box.download(f"{tmp_path}/in", tmp_path / "out"))
        await box.link.ping()
        box.child.kill()
        with pytest.raises(SandboxLost):
            await call
        assert os.listdir(tmp_path) == ["in"]


def member(name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info.tobuf() + content + bytes(-len(content) % 512)


async def test_a_hostile_stream_ends_the_link_and_leaves_nothing(peer_box, tmp_path):
    async with peer_box() as (box, peer):
        call = asyncio.ensure_future(box.download("/x", tmp_path / "out"))
        channel, *_ = await peer.hear()
        await peer.say(channel, 0x50, member("../evil", b"x") + bytes(1024))
        with pytest.raises(SandboxLost, match="leads elsewhere"):
            await call
        await peer.ended()
        assert os.listdir(tmp_path) == []
        assert not (tmp_path.parent / "evil").exists()


async def test_an_endless_download_is_stopped_by_its_limit(peer_box, tmp_path):
    async with peer_box() as (box, peer):
        call = asyncio.ensure_future(box.download("/x", tmp_path / "out", limit_bytes=1000))
        channel, *_ = await peer.hear()
        await peer.say(channel, 0x50, member("f", bytes(900)) + member("g", bytes(900)))
        with pytest.raises(Misuse):
            await call
        assert (await peer.hear())[:2] == (channel, 0x16)
        assert os.listdir(tmp_path) == []
        await peer.error(channel, 125)
