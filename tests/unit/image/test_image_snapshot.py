"""Layers and snapshots: kept while somebody needs them, and not a moment longer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.image.resolve import remembered, resolve
from dutyfree.image.store import Store


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


def layer(store: Store, content: str = "x", **options) -> str:
    with store.draft_layer() as draft:
        (draft.rootfs / "file").write_text(content)
        os.utime(draft.rootfs / "file", ns=(1, 1))
        os.utime(draft.rootfs, ns=(1, 1))
        return store.publish_layer(draft, durable=False, **options)


def layers(store: Store) -> set[str]:
    return set(os.listdir(store.root / "layers"))


def leftovers(store: Store) -> list[str]:
    return os.listdir(store.root / "building") + os.listdir(store.root / "trash")


def test_a_layer_is_called_by_its_content(store: Store):
    assert layer(store, "a") == layer(store, "a")
    assert layer(store, "a") != layer(store, "b")
    assert leftovers(store) == []


def test_a_layer_that_is_not_read_gets_a_name_of_its_own(store: Store):
    assert layer(store, hashed=False) != layer(store, hashed=False)


def test_a_published_layer_stays_while_its_maker_lives_and_is_then_garbage(store: Store):
    maker = Store(store.root)
    key = layer(maker)
    store.images.sweep()
    assert layers(store) == {key}
    maker.close()
    store.images.sweep()
    assert layers(store) == set()
    assert leftovers(store) == []


def test_a_draft_that_was_not_published_is_gone(store: Store):
    with store.draft_layer() as draft:
        (draft.rootfs / "file").write_text("x")
    assert leftovers(store) == []
    assert layers(store) == set()


def test_a_snapshot_resolves_to_its_layers_with_what_its_base_said(store: Store):
    top, base = layer(store, "top"), layer(store, "base")
    store.save_snapshot("s", (top, base), env={"A": "1"}, cwd="/w", user="u", binds=[(Path("/usr"), "/usr")])
    image = resolve("snapshot:s", store)
    assert image.layers == (store.layers.path(top), store.layers.path(base))
    assert image.layer_keys == (top, base)
    assert (image.env, image.cwd, image.user, image.binds) == ({"A": "1"}, "/w", "u", ((Path("/usr"), "/usr"),))
    assert remembered("snapshot:s", store) is image


def test_a_snapshot_over_the_host_image_keeps_its_binds(store: Store):
    host = resolve("host", store)
    store.save_snapshot("s", (layer(store), *host.layer_keys), binds=host.binds)
    assert resolve("snapshot:s", store).binds == host.binds


def test_a_snapshot_over_a_directory_uses_it_where_it_is(store: Store, tmp_path: Path):
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    base = resolve(str(tmp_path / "rootfs"), store)
    store.save_snapshot("s", (layer(store), *base.layer_keys))
    assert resolve("snapshot:s", store).layers[1] == tmp_path / "rootfs"


def test_the_first_of_two_snapshots_with_one_key_stays(store: Store):
    first = store.save_snapshot("s", (layer(store, "1"),))
    assert store.save_snapshot("s", (layer(store, "2"),)) == first
    assert resolve("snapshot:s", store).layer_keys == first.layers
    store.images.sweep()
    assert layers(store) == set(first.layers)


def test_a_snapshot_outlives_its_maker_and_a_temporary_one_does_not(store: Store):
    maker = Store(store.root)
    kept, short = layer(maker, "kept"), layer(maker, "short")
    maker.save_snapshot("kept", (kept,))
    maker.save_snapshot("short", (short, kept), temporary=True)
    store.images.sweep()
    assert layers(store) == {kept, short}
    maker.close()
    store.images.sweep()
    assert layers(store) == {kept}
    assert set(store.names.all()) == {"snapshot:kept"}


def test_a_removed_snapshot_leaves_with_the_layers_that_only_it_had(store: Store):
    base, top = layer(store, "base"), layer(store, "top")
    store.save_snapshot("one", (base,))
    store.save_snapshot("two", (top, base))
    store.remove_snapshot("two")
    assert layers(store) == {base}
    store.remove_snapshot("two")
    store.remove_snapshot("one")
    assert layers(store) == set()
    assert leftovers(store) == []
    with pytest.raises(Misuse, match="snapshot:one"):
        resolve("snapshot:one", store)


def test_a_removed_snapshot_stays_on_disk_until_its_last_sandbox_ended(store: Store):
    key = layer(store)
    store.save_snapshot("s", (key,), temporary=True)
    image = resolve("snapshot:s", store)
    store.borrow(image.key)
    store.borrow(image.key)
    store.remove_snapshot("s")
    store.give_back(image.key)
    assert (image.layers[0] / "file").read_text() == "x"
    store.give_back(image.key)
    assert layers(store) == set()
    assert leftovers(store) == []


def test_what_was_resolved_and_never_borrowed_stays_until_the_store_closes(store: Store):
    store.save_snapshot("s", (layer(store),))
    image = resolve("snapshot:s", store)
    store.remove_snapshot("s")
    store.images.sweep()
    assert (image.layers[0] / "file").read_text() == "x"
    store.close()
    store.images.sweep()
    assert layers(store) == set()


def test_a_killed_makers_temporary_snapshot_and_layer_are_swept(store: Store):
    code = (
        "import sys; from pathlib import Path; from dutyfree.image.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for n in ('a', 'b'):\n"
        "    with store.draft_layer() as draft:\n"
        "        (draft.rootfs / n).write_text(n); key = store.publish_layer(draft, durable=False)\n"
        "    if n == 'a': store.save_snapshot('t', (key,), temporary=True)\n"
        "print(flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, store.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as maker:
        maker.stdout.readline()
        store.images.sweep()
        assert len(layers(store)) == 2
        assert resolve("snapshot:t", store)
        store.close()
        maker.kill()
        maker.wait()
    store.images.sweep()
    assert layers(store) == set()
    assert store.names.all() == {}
    assert leftovers(store) == []


def test_a_snapshot_of_a_layer_that_is_gone_is_refused_and_leaves_nothing(store: Store):
    with pytest.raises(Unavailable, match="removed meanwhile"):
        store.save_snapshot("s", ("absent",))
    assert store.names.all() == {}
    assert store.images.manifests() == []


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "-a", "a b", "a\0", "x" * 129, "é"])
def test_a_key_that_could_lead_elsewhere_is_refused(store: Store, key: str):
    for act in (lambda: store.save_snapshot(key, ()), lambda: store.remove_snapshot(key)):
        with pytest.raises(Misuse) as caught:
            act()
        assert caught.value.field == "key"


def test_whiteouts_opaque_directories_and_owners_stay_as_they_are(store: Store):
    with store.draft_layer() as draft:
        (draft.rootfs / "folder").mkdir(mode=0o700)
        os.setxattr(draft.rootfs / "folder", "user.overlay.opaque", b"y")
        os.mknod(draft.rootfs / "gone", 0o020000, os.makedev(0, 0))
        key = store.publish_layer(draft)
    root = store.layers.path(key)
    assert (root / "gone").lstat().st_rdev == 0
    assert os.getxattr(root / "folder", "user.overlay.opaque") == b"y"


def test_a_layer_made_elsewhere_on_the_filesystem_can_be_renamed_into_the_draft(store: Store, tmp_path: Path):
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper/file").write_text("x")
    with store.draft_layer() as draft:
        (tmp_path / "upper").rename(draft.rootfs)
        key = store.publish_layer(draft)
    assert (store.layers.path(key) / "file").read_text() == "x"
