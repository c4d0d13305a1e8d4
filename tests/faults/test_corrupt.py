"""State files that a dying disk left behind: what they said is lost, and nothing else. No error but ours comes out."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

import dutyfree
from dutyfree.image.collect import collect
from dutyfree.image.intake import import_directory
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Store
from dutyfree.image.verify import verify
from dutyfree.warm import open_pool
from dutyfree.warm.ledger import Ledger

DAMAGES = {
    "empty": b"",
    "half": None,
    "binary": b"\xff\xfe\0\1",
    "a list": b"[]",
    "a number": b"7",
    "other fields": b'{"layers": 5, "key": 7, "stamp": "x", "binds": [1]}',
    "no fields": b'{"layers": ["x"]}',
}


@pytest.fixture
def tree(tmp_path):
    for name in ("bin", "etc", "usr", "tmp", "proc", "dev", "sys"):
        (tmp_path / "tree" / name).mkdir(parents=True)
    (tmp_path / "tree" / "etc" / "file").write_text("content")
    return tmp_path / "tree"


def damage(path: Path, name: str) -> None:
    content = DAMAGES[name]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content is None else content)


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("which", ["images/*/image.json", "layers/*/layer.json", "paths/*"])
def test_a_damaged_file_of_the_store_costs_that_image_at_most(which, name, tree, tmp_path):
    store = Store(tmp_path / "store")
    store.names.give("mine", import_directory(store, tree).key)
    store.names.note(tree, [1, 2, 3], "key")
    store.close()
    (path,) = store.root.glob(which)
    damage(path, name)

    later = Store(store.root)
    later.names.recall(tree)
    list(verify(later))
    later.images.manifests()
    collect(later.images)
    with contextlib.suppress(dutyfree.DutyfreeError):
        resolve("mine", later)
    later.names.give("mine", import_directory(later, tree).key)
    assert (resolve("mine", later).layers[0] / "etc/file").read_text() == "content"
    later.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="snapshots of native need root: sudo make test")
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_of_a_stage_costs_what_was_known_of_it(name, tmp_path, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    spec = dutyfree.Spec(stages=(dutyfree.Commands(commands=["echo built > /built"]),))

    async def use():
        async with open_pool("native") as pool, pool.create(spec) as box:
            assert await box.read("/built") == b"built\n"

    asyncio.run(use())
    (path,) = (tmp_path / "home/stages/native").glob("*.json")
    damage(path, name)
    assert Ledger("native").entries() == []
    asyncio.run(use())


@pytest.mark.skipif(os.geteuid() != 0, reason="resets of native need root: sudo make test")
def test_an_action_during_a_reset_ends_as_lost_or_in_the_fresh_sandbox():
    async def main():
        async with dutyfree.connect("native") as substrate, substrate.create() as box:
            await box.reset()
            for turns in range(12):
                await box.write("/root/mark", b"x")
                running = asyncio.ensure_future(box.run(["sleep", "1000"]))
                await asyncio.sleep(0)
                reset = asyncio.ensure_future(box.reset())
                for _ in range(turns):
                    await asyncio.sleep(0)
                late = asyncio.ensure_future(box.run(["ls", "/root"]))
                await reset
                ended = await asyncio.gather(running, late, return_exceptions=True)
                assert isinstance(ended[0], dutyfree.SandboxLost)
                assert isinstance(ended[1], dutyfree.SandboxLost) or b"mark" not in ended[1].stdout or turns == 0
                assert (await box.run(["ls", "/root"])).stdout == b""

    asyncio.run(main())
