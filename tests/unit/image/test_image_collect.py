"""What nobody named and nobody uses goes, oldest first; nothing else does."""

import os
from pathlib import Path

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.image.collect import collect, limit, parse_size, stored_bytes
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Store
from dutyfree.image.verify import verify


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


def snapshot(store: Store, name: str, *, size: int = 100, used_s: float = 0.0, base: tuple[str, ...] = ()) -> str:
    with store.draft_layer() as draft:
        (draft.rootfs / name).write_bytes(b"x" * size)
        key = store.publish_layer(draft, durable=False)
    image = store.save_snapshot(name, (key, *base)).key
    os.utime(store.images.directory(image), (used_s, used_s))
    return key


def left(store: Store) -> set[str]:
    return {name.removeprefix("snapshot:") for name in store.names.all()}


def test_without_limits_only_garbage_goes(store: Store):
    snapshot(store, "a")
    assert collect(store.images).removed == ()
    assert left(store) == {"a"}


def test_the_least_recently_used_go_until_the_rest_fits(store: Store):
    for name, used_s in (("old", 1), ("older", 0), ("new", 2)):
        snapshot(store, name, used_s=used_s)
    done = collect(store.images, keep_bytes=150)
    assert left(store) == {"new"}
    assert [manifest.source for manifest in done.removed] == ["snapshot:older", "snapshot:old"]
    assert (done.before_bytes, done.after_bytes) == (300, 100)


def test_what_was_not_used_for_long_goes(store: Store):
    snapshot(store, "old", used_s=1)
    snapshot(store, "new", used_s=4e9)
    collect(store.images, older_than_s=3600)
    assert left(store) == {"new"}


def test_resolving_counts_as_use(store: Store):
    snapshot(store, "a", used_s=1)
    other = Store(store.root)
    resolve("snapshot:a", other)
    other.close()
    collect(store.images, older_than_s=3600)
    assert left(store) == {"a"}


def test_what_is_in_use_or_named_by_a_person_stays(store: Store):
    snapshot(store, "used", used_s=0)
    snapshot(store, "named", used_s=0)
    store.names.give("mine", store.named("snapshot:named"))
    user = Store(store.root)
    resolve("snapshot:used", user)
    collect(store.images, keep_bytes=0, older_than_s=0)
    assert left(store) == {"used", "named", "mine"}
    user.close()


def test_a_layer_stays_while_any_image_has_it(store: Store):
    base = snapshot(store, "base", used_s=0)
    snapshot(store, "over", used_s=4e9, base=(base,))
    collect(store.images, older_than_s=3600)
    assert left(store) == {"over"}
    assert store.layers.get(base) is not None


def test_a_store_with_a_limit_keeps_to_it_by_itself_and_spares_what_just_came(tmp_path: Path):
    store = Store(tmp_path / "store", limit_bytes=150)
    for index in range(4):
        snapshot(store, f"s{index}", used_s=index)
        assert left(store) == {f"s{index}"}
    snapshot(store, "large", size=1000)
    assert left(store) == {"large"}
    assert stored_bytes(store.images) == 1000
    store.close()


def test_the_limit_is_a_setting(monkeypatch, tmp_path: Path):
    assert limit({}) is None
    assert limit({"DUTYFREE_STORE_BYTES": "2G"}) == 2 << 30
    monkeypatch.setenv("DUTYFREE_STORE_BYTES", "lots")
    with pytest.raises(Misuse) as caught:
        Store.default()
    assert caught.value.field == "DUTYFREE_STORE_BYTES"
    for text in ("", "-1", "1.5G", "G", "1X"):
        with pytest.raises(Misuse):
            parse_size(text, "x")


def test_a_changed_byte_mode_or_name_is_found(store: Store):
    keys = [snapshot(store, name) for name in ("byte", "mode", "name", "fine")]
    with (store.layers.path(keys[0]) / "byte").open("r+b") as file:
        file.write(b"y")
    (store.layers.path(keys[1]) / "mode").chmod(0o600)
    (store.layers.path(keys[2]) / "name").rename(store.layers.path(keys[2]) / "other")
    assert {verdict.layer.key for verdict in verify(store) if verdict.intact} == {keys[3]}


def test_a_layer_made_without_a_digest_is_no_verdict(store: Store):
    with store.draft_layer() as draft:
        store.save_snapshot("s", (store.publish_layer(draft, hashed=False, durable=False),))
    assert [verdict.intact for verdict in verify(store)] == [None]
