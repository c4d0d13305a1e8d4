"""Images appear whole, and go only when nobody uses them."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.core.errors import Unavailable
from dutyfree.image.names import ALIAS
from dutyfree.image.root import delete, locate
from dutyfree.image.store import Manifest, Store


def manifest(key: str) -> Manifest:
    return Manifest(
        key=key, kind="archive", made_s=1.0, size_bytes=1, source="here", env={"A": "b"}, notes=("n",), layers=(key,)
    )


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


def publish(store: Store, key: str, content: str = "x") -> None:
    with store.images.building() as building:
        (building.rootfs / "file").write_text(content)
        store.publish(building, manifest(key), durable=False)


def test_root_keeps_images_with_the_system_and_others_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate({}, 0) == Path("/var/lib/dutyfree")
    assert locate({}, 1000) == tmp_path / ".local/share/dutyfree"
    assert locate({"XDG_DATA_HOME": "/data"}, 1000) == Path("/data/dutyfree")
    assert locate({"XDG_DATA_HOME": "relative"}, 1000) == tmp_path / ".local/share/dutyfree"
    assert locate({"DUTYFREE_HOME": "/elsewhere", "XDG_DATA_HOME": "/data"}, 0) == Path("/elsewhere")


def test_what_is_published_is_found_with_its_manifest(store: Store):
    publish(store, "k")
    assert store.manifest("k") == manifest("k")
    assert (store.layers.path("k") / "file").read_text() == "x"
    assert store.images.manifests() == [manifest("k")]


def test_the_first_of_two_images_with_one_key_stays(store: Store):
    publish(store, "k", "first")
    publish(store, "k", "second")
    assert (store.layers.path("k") / "file").read_text() == "first"
    assert os.listdir(store.root / "building") == []


def test_a_failed_build_leaves_nothing(store: Store):
    with pytest.raises(FileExistsError), store.images.building() as building:
        building.rootfs.mkdir()
    assert os.listdir(store.root / "building") == []
    assert store.images.manifests() == []


def test_what_a_killed_builder_left_is_swept_and_a_live_builders_work_is_not(store: Store, tmp_path: Path):
    code = (
        "import sys, os; from pathlib import Path; from dutyfree.image.store import Store\n"
        "with Store(Path(sys.argv[1])).images.building() as b:\n"
        "    (b.rootfs / 'half').write_text('x'); print(b.path.name, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, store.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as builder:
        name = builder.stdout.readline().strip()
        store.images.sweep()
        assert os.listdir(store.root / "building") == [name]
        builder.kill()
        builder.wait()
    store.images.sweep()
    assert os.listdir(store.root / "building") == []


def test_names_move_atomically_and_may_alias_the_host(store: Store):
    publish(store, "k")
    store.names.give("mine", "k")
    assert store.named("mine") == "k"
    store.names.give("mine", ALIAS)
    assert store.names.all() == {"mine": ALIAS}
    store.names.drop("mine")
    assert store.named("mine") is None


@pytest.mark.parametrize("name", ["", ".", "..", "../images/k", "a/b", "absent"])
def test_a_name_never_leads_out_of_the_names(store: Store, name: str):
    publish(store, "k")
    assert store.named(name) is None


def test_a_removed_image_stays_on_disk_while_somebody_holds_it(store: Store):
    publish(store, "k")
    user = Store(store.root)
    assert user.images.hold("k")
    layer = os.open(user.layers.path("k"), os.O_RDONLY)
    assert store.images.retire("k") is False
    assert store.manifest("k") is None
    assert os.listdir(layer) == ["file"]
    user.close()
    store.images.sweep()
    assert os.listdir(layer) == []
    os.close(layer)
    assert os.listdir(store.root / "trash") == []


def test_an_idle_image_is_removed_at_once(store: Store):
    publish(store, "k")
    assert store.images.retire("k") is True
    assert os.listdir(store.root / "trash") == []
    assert store.images.retire("k") is True


def test_what_is_gone_cannot_be_held(store: Store):
    assert not store.images.hold("absent")
    publish(store, "k")
    fd = os.open(store.images.directory("k"), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert not store.images.hold("k")
    os.close(fd)
    assert store.images.hold("k")


def test_an_image_made_again_after_removal_can_be_held_again(store: Store):
    publish(store, "k")
    assert store.images.hold("k")
    Store(store.root).images.retire("k")
    assert not store.images.hold("k")
    publish(store, "k")
    assert store.images.hold("k")


def test_a_tree_with_forbidden_directories_can_be_deleted(tmp_path: Path):
    (tmp_path / "tree/a/b").mkdir(parents=True)
    (tmp_path / "tree/a/b/file").write_text("x")
    (tmp_path / "tree/link").symlink_to(tmp_path)
    (tmp_path / "tree/a").chmod(0)
    delete(tmp_path / "tree")
    assert os.listdir(tmp_path) == []
    delete(tmp_path / "tree")


def test_a_home_that_cannot_be_made_is_unavailable_with_the_way_out(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="DUTYFREE_HOME"), Store(tmp_path / "file/store").images.building():
        pass


def test_fields_of_other_versions_do_no_harm(store: Store):
    publish(store, "k")
    for note in (store.images.directory("k") / "image.json", store.layers.directory("k") / "layer.json"):
        content = json.loads(note.read_text())
        for name in ("entrypoint", "notes"):
            content.pop(name, None)
        note.write_text(json.dumps(content | {"later": 1}))
    store.images.sweep()
    assert store.manifest("k").layers == ("k",)
    assert store.layers.get("k").notes == ()


def test_an_image_of_the_form_without_layers_is_swept(store: Store):
    (store.root / "images/old/rootfs").mkdir(parents=True)
    (store.root / "images/old/image.json").write_text('{"key": "old", "notes": []}')
    assert store.manifest("old") is None
    with store.images.building():
        pass
    assert os.listdir(store.root / "images") == []
