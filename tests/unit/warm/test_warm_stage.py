"""Stages on a real substrate: built once, kept whole or not at all, with a log."""

import asyncio
import io
import os
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


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="snapshots of native need root: sudo make test")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def staged(*stages):
    return Spec(stages=stages)


def with_pool(work, name="native"):
    async def main():
        async with open_pool(name, settings=QUIET) as pool:
            return await work(pool)

    return asyncio.run(main())


STATE = Commands(commands=["echo state > state"])


def test_a_hundred_who_ask_at_once_get_one_build():
    async def work(pool):
        spec = staged(STATE, Commands(commands=["cat state state > twice"]))
        boxes = await asyncio.gather(*(pool.create(spec) for _ in range(100)))
        assert (await boxes[99].run("cat twice")).stdout == b"state\nstate\n"
        assert pool.metrics().builds == 2
        for box in boxes:
            await box.destroy()

    with_pool(work)


ASKER = """
import asyncio, dutyfree
from dutyfree.warm import open_pool
async def main():
    stage = dutyfree.Commands(commands=["sleep 0.3; echo state > state"])
    async with open_pool("native") as pool, pool.create(dutyfree.Spec(stages=(stage,))) as box:
        print((await box.run("cat state")).text().strip(), pool.metrics().builds)
asyncio.run(main())
"""


def test_several_processes_that_ask_at_once_get_one_build():
    askers = [subprocess.Popen([sys.executable, "-c", ASKER], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert sorted(asker.communicate()[0] for asker in askers) == ["state 0\n"] * 3 + ["state 1\n"]


def test_what_was_built_is_there_for_the_next_pool():
    spec = staged(STATE)

    async def work(pool):
        async with pool.create(spec) as box:
            assert (await box.run("cat state")).ok
        return pool.metrics().builds

    assert (with_pool(work), with_pool(work)) == (1, 0)


def test_a_recipe_that_fails_is_an_error_with_the_log_and_never_kept():
    async def work(pool):
        spec = staged(Commands(commands=["echo one", "echo the reason >&2; exit 3", "echo never"], name="broken"))
        for _ in range(2):
            with pytest.raises(StageFailed, match=r"stage 1 of 1 \(broken\) failed.*exited with 3") as caught:
                await pool.create(spec)
            assert caught.value.log_tail.splitlines()[-1] == "the reason"
            assert "never" not in caught.value.log_tail
        assert pool.metrics().build_failures == 2
        assert not await pool.holds(f"snapshot:{caught.value.key}")
        return caught.value.key

    key = with_pool(work)
    assert "the reason" in Ledger("native").read_log(key)
    assert Ledger("native").entries() == []


def test_a_command_that_takes_too_long_fails_its_stage():
    async def work(pool):
        with pytest.raises(StageFailed, match="timeout"):
            await pool.create(staged(Commands(commands=["sleep 60"], timeout_s=0.2)))

    with_pool(work)


def test_when_the_last_who_asked_is_cancelled_the_build_is(home):
    async def work(pool):
        spec = staged(Commands(commands=["sleep 60"]))
        tasks = [asyncio.ensure_future(_awaited(pool.create(spec))) for _ in range(3)]
        await begun(home)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        assert pool.metrics().coming == 2
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert pool.metrics().coming == 0
        assert pool._stock.room.taken == 0
        assert pool.substrate._boxes == set()

    with_pool(work)


def test_closing_ends_builds_and_those_who_wait_for_them(home):
    async def main():
        pool = await open_pool("native", settings=QUIET)
        spec = staged(Commands(commands=["sleep 60"]))
        task = asyncio.ensure_future(_awaited(pool.create(spec)))
        await begun(home)
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
            spec = staged(Files(files={"/there": tree}))
            async with pool.create(spec) as box:
                seen.append(await box.read("/there/file"))
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


@pytest.mark.parametrize("depth", [None, 1])
def test_a_repository_is_there_at_its_commit(repository, depth, home):
    commit = git("rev-parse", "HEAD~1", cwd=repository)
    outside = Repository(url=str(repository), commit=commit, depth=depth)
    inside = Repository(url="file:///repo", commit=commit, path="/again", depth=depth, fetch="inside", network="none")

    async def work(pool):
        async with pool.create(staged(outside, inside)) as box:
            for place in ("/repo", "/again"):
                assert await box.read(f"{place}/file") == b"two"
                out = await box.run("git log --format=%s && git status --porcelain", cwd=place)
                assert out.text().splitlines() == (["two"] if depth else ["two", "one"])

    with_pool(work)
    assert list((home / "stages").glob("scratch/*")) == []


def test_a_commit_that_is_not_there_fails_with_what_git_said(repository):
    async def work(pool):
        with pytest.raises(StageFailed) as caught:
            await pool.create(staged(Repository(url=str(repository), commit="0" * 40)))
        assert "0000" in caught.value.log_tail

    with_pool(work)


def test_a_url_is_never_a_command(tmp_path):
    async def work(pool):
        with pytest.raises(StageFailed):
            await pool.create(staged(Repository(url=f"ext::touch {tmp_path}/harm", commit="0" * 40)))

    with_pool(work)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(("name", "says"), [("native", "connect to 'warm:native'"), ("host", "snapshots")])
def test_a_plain_driver_says_what_builds_stages(name, says):
    async def main():
        async with dutyfree.connect(name) as substrate:
            with pytest.raises(Unsupported, match=says):
                await substrate.create(staged(STATE))

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

    with_pool(work)


def write_root(path: Path, text: str) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("dev", "etc", "proc", "run", "sys", "tmp"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(directory)
        file = tarfile.TarInfo("etc/text")
        file.size = len(text)
        archive.addfile(file, io.BytesIO(text.encode()))


async def begun(home):
    """The log of a build can be read while it runs."""
    while not any(b"$ sleep" in path.read_bytes() for path in home.glob("stages/native/*.log")):  # noqa: ASYNC110 - a file
        await asyncio.sleep(0.01)


async def _awaited(pending):
    return await pending
