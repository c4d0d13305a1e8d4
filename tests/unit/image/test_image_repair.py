"""Images whose layers are missing or damaged: told by name, found by `verify`, made whole by the command it prints."""

import argparse
import contextlib
import json
import os
import shlex
from pathlib import Path

import pytest
from support.image import Layout, layer, member, saved

from dutyfree.cli import image
from dutyfree.core.errors import Unavailable
from dutyfree.image.oci.intake import import_path
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Store

BASE = layer(member("etc/"), member("etc/a", b"shared"), member("bin/"))
LAYERS = {name: layer(member("etc/"), member("etc/own", name.encode())) for name in ("one", "two")}


@pytest.fixture
def dutyfree(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    parser = argparse.ArgumentParser()
    image.add_arguments(parser)
    return lambda *words: image.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def opened(tmp_path: Path):
    """A store at a place, closed at the end."""
    with contextlib.ExitStack() as stores:
        yield lambda root: stores.enter_context(contextlib.closing(Store(root)))


@pytest.fixture
def two(dutyfree, opened, tmp_path: Path) -> Store:
    """Two images that share their base, each from an archive of its own."""
    for name, top in LAYERS.items():
        dutyfree("import", saved(tmp_path / f"{name}.tar", (BASE, top)), "--name", name)
    return opened(tmp_path / "home")


def base_of(store: Store) -> Path:
    first, second = (store.manifest(store.named(name)).layers[-1] for name in LAYERS)
    assert first == second
    return store.layers.path(first)


def damage(store: Store) -> None:
    (base_of(store) / "etc/a").write_bytes(b"Shared")


def remove(store: Store) -> None:
    os.rename(base_of(store).parent, store.root / "gone")


def advised(capsys) -> list[list[str]]:
    """The commands that were printed last, as the words after `dutyfree image`."""
    lines = capsys.readouterr().err.splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("  dutyfree image ")]


@pytest.mark.parametrize("spoil", [damage, remove])
@pytest.mark.parametrize("which", ["one", None])
def test_verify_finds_it_and_what_it_advises_makes_it_whole(dutyfree, two: Store, spoil, which: str | None, capsys):
    spoil(two)
    words = () if which is None else (which,)
    assert dutyfree("verify", *words) == 1
    commands = advised(capsys)
    assert [command[command.index("--name") + 1] for command in commands] == ["one", "two"]
    assert dutyfree(*commands[0]) == 0
    assert dutyfree("verify") == 0, "the base is the other's too"
    assert (base_of(two) / "etc/a").read_bytes() == b"shared"


def test_one_of_them_removed_and_imported_again_is_whole(dutyfree, two: Store, tmp_path: Path):
    damage(two)
    assert dutyfree("verify", "one") == 1
    dutyfree("remove", "one")
    dutyfree("import", tmp_path / "one.tar", "--name", "one")
    assert dutyfree("verify") == 0


def test_what_is_missing_is_in_the_verdicts_for_programs(dutyfree, two: Store, capsys):
    remove(two)
    capsys.readouterr()
    assert dutyfree("verify", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert said["damaged"] == 1
    assert [(one["missing"], len(one["images"])) for one in said["layers"] if not one["intact"]] == [(True, 2)]


def test_a_layer_whose_description_is_damaged_is_damaged(dutyfree, two: Store):
    (base_of(two).parent / "layer.json").write_text("{")
    assert dutyfree("verify") == 1


def test_a_name_whose_image_is_damaged_is_told_and_can_be_given_again(dutyfree, two: Store, tmp_path: Path, capsys):
    (two.images.directory(two.named("one")) / "image.json").write_text("{")
    with pytest.raises(Unavailable, match="'one' is damaged") as told:
        resolve("one", two)
    assert told.value.enable.startswith("dutyfree image remove one")
    assert dutyfree("verify") == 1
    assert ["remove", "one,"] in [command[:2] for command in advised(capsys)]
    dutyfree("remove", "one")
    dutyfree("import", tmp_path / "one.tar", "--name", "one")
    assert dutyfree("verify") == 0


@pytest.mark.parametrize("position", [0, -1])
def test_a_missing_layer_is_told_with_image_layer_and_remedy(two: Store, opened, tmp_path: Path, position: int):
    found = resolve("one", two)
    os.rename(found.layers[position].parent, two.root / "gone")
    for asked in (two, opened(two.root)):
        with pytest.raises(Unavailable, match="image 'one' lacks 1 of its 2 layers") as told:
            resolve("one", asked)
        assert str(found.layers[position]) in str(told.value)
        assert told.value.enable == f"dutyfree image import {tmp_path}/one.tar --name one --force"


def test_an_archive_used_by_its_path_is_imported_again_where_its_files_are_gone(opened, tmp_path: Path):
    path = tmp_path / "root.tar"
    path.write_bytes(layer(member("bin/"), member("bin/tool", b"1")))
    store = opened(tmp_path / "store")
    layers = resolve(str(path), store).layers
    os.rename(layers[0].parent, tmp_path / "gone")
    for asked in (store, opened(tmp_path / "store")):
        assert (resolve(str(path), asked).layers[0] / "bin/tool").read_bytes() == b"1"


def test_a_snapshot_is_saved_again_where_its_layer_is_gone(opened, tmp_path: Path):
    store = opened(tmp_path / "store")

    def save() -> Path:
        with store.draft_layer() as draft:
            (draft.rootfs / "a").write_bytes(b"1")
            key = store.publish_layer(draft)
        return store.layers.path(store.save_snapshot("kept", [key]).layers[0])

    os.rename(save().parent, tmp_path / "gone")
    with pytest.raises(Unavailable, match="lacks 1 of its 1 layers"):
        resolve("snapshot:kept", store)
    again = save()
    assert resolve("snapshot:kept", store).layers == (again,)


def test_a_layout_and_an_archive_of_the_same_image_have_one_key(opened, tmp_path: Path):
    store, said = opened(tmp_path / "store"), {"Env": ["B=2", "A=1"], "WorkingDir": "/work", "Cmd": ["sh"]}
    layout = Layout(tmp_path / "layout")
    layout.add(layout.manifest((BASE, LAYERS["one"]), said=said | {"Labels": {"made": "elsewhere"}}))
    archive = saved(tmp_path / "saved.tar", (BASE, LAYERS["one"]), said=said)
    key = import_path(store, archive).key
    assert import_path(store, layout.path).key == key
    other = saved(tmp_path / "other.tar", (BASE, LAYERS["one"]), said=said | {"Env": ["A=1"]})
    assert import_path(store, other).key != key
