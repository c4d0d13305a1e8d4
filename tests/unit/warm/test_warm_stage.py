"""Stages on a real substrate: built once, kept whole or not at all, with a log."""

import asyncio
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import dutyfree
from dutyfree import Commands, Files, Repository, Spec, StageFailed, Unsupported
from dutyfree.warm import Settings, open_pool
from dutyfree.warm.chain import chain_of
from dutyfree.warm.ledger import Ledger

QUIET = Settings(demand=False)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def on_host(*stages):
    return Spec(network="host", stages=stages)


def with_pool(work, name="host"):
    async def main():
        async with open_pool(name, settings=QUIET) as pool:
            return await work(pool)

    return asyncio.run(main())


def counting(path):
    return Commands(commands=[f"echo built >> {path}; echo state > state"])


def test_a_hundred_who_ask_at_once_get_one_build(tmp_path):
    async def work(pool):
        spec = on_host(counting(tmp_path / "count"), Commands(commands=["cat state state > twice"]))
        boxes = await asyncio.gather(*(pool.create(spec) for _ in range(100)))
        assert (await boxes[99].run("cat twice")).stdout == b"state\nstate\n"
        assert pool.metrics().builds == 2
        for box in boxes:
            await box.destroy()

    with_pool(work)
    assert (tmp_path / "count").read_text() == "built\n"


ASKER = """
import asyncio, sys, dutyfree
from dutyfree.warm import open_pool
async def main():
    stage = dutyfree.Commands(commands=[f"echo built >> {sys.argv[1]}; sleep 0.3; echo state > state"])
    async with open_pool("host") as pool, pool.create(dutyfree.Spec(network="host", stages=(stage,))) as box:
        print((await box.run("cat state")).text(), end="")
asyncio.run(main())
"""


def test_several_processes_that_ask_at_once_get_one_build(tmp_path):
    command = [sys.executable, "-c", ASKER, str(tmp_path / "count")]
    askers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [asker.communicate()[0] for asker in askers] == ["state\n"] * 4
    assert (tmp_path / "count").read_text() == "built\n"


def test_what_was_built_is_there_for_the_next_pool(tmp_path):
    spec = on_host(counting(tmp_path / "count"))

    async def work(pool):
        async with pool.create(spec) as box:
            assert (await box.run("cat state")).ok
        return pool.metrics().builds

    assert (with_pool(work), with_pool(work)) == (1, 0)


def test_a_recipe_that_fails_is_an_error_with_the_log_and_never_kept():
    async def work(pool):
        spec = on_host(Commands(commands=["echo one", "echo the reason >&2; exit 3", "echo never"], name="broken"))
        for _ in range(2):
            with pytest.raises(StageFailed, match=r"stage 1 of 1 \(broken\) failed.*exited with 3") as caught:
                await pool.create(spec)
            assert caught.value.log_tail.splitlines()[-1] == "the reason"
            assert "never" not in caught.value.log_tail
        assert pool.metrics().build_failures == 2
        assert not await pool.holds(f"snapshot:{caught.value.key}")
        return caught.value.key

    key = with_pool(work)
    assert "the reason" in Ledger("host").read_log(key)
    assert Ledger("host").entries() == []


def test_a_command_that_takes_too_long_fails_its_stage():
    async def work(pool):
        with pytest.raises(StageFailed, match="timeout"):
            await pool.create(on_host(Commands(commands=["sleep 60"], timeout_s=0.2)))

    with_pool(work)


def test_when_the_last_who_asked_is_cancelled_the_build_is(tmp_path):
    async def work(pool):
        spec = on_host(Commands(commands=[f"touch {tmp_path}/begun; sleep 60"]))
        tasks = [asyncio.ensure_future(_awaited(pool.create(spec))) for _ in range(3)]
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        assert pool.metrics().coming == 2
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert pool.metrics().coming == 0
        assert pool._stock.room.taken == 0
        assert pool.substrate._boxes == {}

    with_pool(work)


def test_closing_ends_builds_and_those_who_wait_for_them(tmp_path):
    async def main():
        pool = await open_pool("host", settings=QUIET)
        spec = on_host(Commands(commands=[f"touch {tmp_path}/begun; sleep 60"]))
        task = asyncio.ensure_future(_awaited(pool.create(spec)))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        await pool.close()
        with pytest.raises(dutyfree.DutyfreeError):
            await task

    asyncio.run(main())


def test_a_local_tree_that_changed_is_another_state(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()

    async def work(pool):
        seen = []
        for text in ("one", "two", "two"):
            (tree / "file").write_text(text)
            spec = on_host(Files(files={str(tmp_path / "there"): tree}))
            async with pool.create(spec) as box:
                seen.append(await box.read(str(tmp_path / "there" / "file")))
        assert seen == [b"one", b"two", b"two"]
        assert pool.metrics().builds == 2

    with_pool(work)


def git(*words, cwd):
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *author, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    place = tmp_path / "repository"
    place.mkdir()
    git("init", "-q", "-b", "main", cwd=place)
    for text in ("one", "two", "three"):
        (place / "file").write_text(text)
        git("add", ".", cwd=place)
        git("commit", "-q", "-m", text, cwd=place)
    return place


@pytest.mark.parametrize("fetch", ["outside", "inside"])
@pytest.mark.parametrize("depth", [None, 1])
def test_a_repository_is_there_at_its_commit(tmp_path, repository, fetch, depth, home):
    commit = git("rev-parse", "HEAD~1", cwd=repository)
    target = tmp_path / "checkout"

    async def work(pool):
        stage = Repository(url=str(repository), commit=commit, path=str(target), fetch=fetch, depth=depth)
        async with pool.create(on_host(stage)) as box:
            assert await box.read(str(target / "file")) == b"two"
            out = await box.run("git log --format=%s && git status --porcelain", cwd=str(target))
            assert out.text().splitlines() == (["two"] if depth else ["two", "one"])

    with_pool(work)
    assert list((home / "stages").glob("scratch/*")) == []


def test_a_commit_that_is_not_there_fails_with_what_git_said(repository):
    async def work(pool):
        with pytest.raises(StageFailed) as caught:
            await pool.create(on_host(Repository(url=str(repository), commit="0" * 40)))
        assert "0000" in caught.value.log_tail

    with_pool(work)


def test_a_url_is_never_a_command(tmp_path):
    async def work(pool):
        with pytest.raises(StageFailed):
            await pool.create(on_host(Repository(url=f"ext::touch {tmp_path}/harm", commit="0" * 40)))

    with_pool(work)
    assert not (tmp_path / "harm").exists()


def test_a_plain_driver_says_which_pool_builds_stages():
    async def main():
        async with dutyfree.connect("host") as substrate:
            with pytest.raises(Unsupported, match="connect to 'warm:host'"):
                await substrate.create(on_host(Commands(commands=["true"])))

    asyncio.run(main())


def test_a_substrate_without_snapshots_has_a_pool_without_stages():
    async def work(pool):
        assert not pool.capabilities.stages
        async with pool.create() as box:
            assert (await box.run("true")).ok
        with pytest.raises(Unsupported, match="stages"):
            await pool.create(Spec(stages=(Commands(commands=["true"]),)))

    with_pool(work, "noop")


def test_another_archive_under_the_same_name_is_another_root(tmp_path):
    async def work(pool):
        spec = Spec(image=str(tmp_path / "root.tar"), stages=(Commands(commands=["true"]),))
        chains = []
        for text in ("one", "two", "one"):
            write_root(tmp_path / "root.tar", text)
            chains.append(await chain_of(spec, pool.substrate))
        assert chains[0].root == chains[2].root != chains[1].root
        assert chains[0].keys == chains[2].keys != chains[1].keys

    needs_native()
    with_pool(work, "native")


def write_root(path: Path, text: str) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("dev", "etc", "proc", "run", "sys", "tmp"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(directory)
        file = tarfile.TarInfo("etc/text")
        file.size = len(text)
        archive.addfile(file, io.BytesIO(text.encode()))


def needs_native():
    found = dict(dutyfree.drivers())["native"]().probe()
    if not found.available:
        pytest.skip(f"native: {found.reason}; enable: {found.enable}")


async def _awaited(pending):
    return await pending
