"""Files of the sandbox, with the real agent."""

import asyncio
import os
import stat

import pytest

from dutyfree.core.errors import Misuse


@pytest.mark.parametrize("size", [0, 1, 262_144, 262_145, 3_000_000])
async def test_what_is_written_is_read(agent_box, tmp_path, size):
    data = os.urandom(size)
    path = f"{tmp_path}/deep/er/file"
    async with agent_box() as box:
        await box.write(path, data)
        assert await box.read(path) == data
        assert (await box.stat(path)).size_bytes == size


async def test_a_part_is_a_part(agent_box, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(256)))
    async with agent_box() as box:
        assert await box.read(str(path), offset=10, length=5) == bytes(range(10, 15))
        assert await box.read(str(path), offset=250) == bytes(range(250, 256))
        assert await box.read(str(path), offset=250, length=100) == bytes(range(250, 256))
        assert await box.read(str(path), offset=1000) == b""
        assert await box.read(str(path), length=0) == b""


async def test_modes_and_appending(agent_box, tmp_path):
    path = tmp_path / "f"
    async with agent_box() as box:
        await box.write(str(path), b"one", mode=0o600)
        await box.write(str(path), b"two", append=True)
        assert path.read_bytes() == b"onetwo"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_listing_is_sorted_and_typed(agent_box, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"xyz")
    (tmp_path / "c").symlink_to("a")
    os.mkfifo(tmp_path / "d")
    raw = os.fsencode(tmp_path) + b"/\xff"
    os.close(os.open(raw, os.O_CREAT))
    async with agent_box() as box:
        entries = await box.list(str(tmp_path))
        assert [(e.name, e.kind) for e in entries] == [
            ("a", "file"), ("b", "directory"), ("c", "symlink"), ("d", "other"), ("\udcff", "file"),
        ]  # fmt: skip
        assert entries[0].size_bytes == 3
        assert await box.read(f"{tmp_path}/\udcff") == b""
        with pytest.raises(Misuse, match="more than 4"):
            await box.list(str(tmp_path), limit=4)
        assert len(await box.list(str(tmp_path), limit=5)) == 5


async def test_a_large_directory_is_listed_whole(agent_box, tmp_path):
    for i in range(30_000):
        (tmp_path / f"{i:0100d}").touch()
    async with agent_box() as box:
        names = [entry.name for entry in await box.list(str(tmp_path))]
        assert names == [f"{i:0100d}" for i in range(30_000)]
        with pytest.raises(Misuse):
            await box.list(str(tmp_path), limit=100)
        await box.link.ping()


async def test_links_are_followed_only_when_asked(agent_box, tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    async with agent_box() as box:
        info = await box.stat(f"{tmp_path}/link", follow=False)
        assert (info.name, info.kind) == ("link", "symlink")
        with pytest.raises(FileNotFoundError):
            await box.stat(f"{tmp_path}/link")
        assert (await box.stat("/")).name == "/"


async def test_directories_are_made_moved_and_removed(agent_box, tmp_path):
    async with agent_box() as box:
        await box.mkdir(f"{tmp_path}/a/b/c")
        await box.mkdir(f"{tmp_path}/a/b/c")
        await box.rename(f"{tmp_path}/a/b", f"{tmp_path}/moved")
        assert (tmp_path / "moved" / "c").is_dir()
        with pytest.raises(OSError):
            await box.remove(f"{tmp_path}/moved")
        await box.remove(f"{tmp_path}/moved", recursive=True)
        assert os.listdir(tmp_path) == ["a"]


async def test_refusals_are_os_errors_with_the_path(agent_box, tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    async with agent_box() as box:
        with pytest.raises(FileNotFoundError) as caught:
            await box.read(f"{tmp_path}/gone")
        assert caught.value.filename == f"{tmp_path}/gone"
        with pytest.raises(IsADirectoryError):
            await box.read(str(tmp_path))
        with pytest.raises(OSError):
            await box.read(f"{tmp_path}/fifo")
        with pytest.raises(NotADirectoryError):
            await box.list(f"{tmp_path}/file")
        with pytest.raises(OSError):
            await box.write(f"{tmp_path}/file/below", bytes(3_000_000))
        with pytest.raises(FileNotFoundError):
            await box.remove(f"{tmp_path}/gone")
        await box.link.ping()


async def test_cancelled_reads_and_writes_leave_no_channel(agent_box, tmp_path):
    data = bytes(50_000_000)
    async with agent_box() as box:
        for action in (box.write(f"{tmp_path}/f", data), box.read(f"{tmp_path}/f"), box.list("/usr/bin")):
            call = asyncio.ensure_future(action)
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            while box.link.channels:
                await box.link.ping()
        await box.write(f"{tmp_path}/f", b"fine")
        assert await box.read(f"{tmp_path}/f") == b"fine"
