"""Names resolve to what a sandbox is mounted from, or to an error that says what to do."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.image.catalogue import catalogue, remove
from dutyfree.image.intake import import_archive, import_directory, stamp
from dutyfree.image.names import ALIAS
from dutyfree.image.resolve import check_name, known, remembered, resolve
from dutyfree.image.store import Store


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for name in ("bin", "etc", "proc", "dev", "sys", "tmp", "usr/bin"):
        (root / name).mkdir(parents=True)
    (root / "etc/motd").write_text("hello\n")
    return root


def pack(root: Path, path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        archive.add(root, arcname=".")
    return path


def test_host_resolves_to_a_skeleton_under_the_machines_own_usr(store: Store):
    image = resolve("host", store)
    assert image.name == "host"
    assert image.layers == (store.layers.path(image.key),)
    assert (Path("/usr"), "/usr") in image.binds
    assert image.env == {}  # the agent sets what every command needs
    assert not (image.layers[0] / "etc/shadow").exists()
    assert list((image.layers[0] / "root").iterdir()) == []


def test_a_second_resolve_gives_the_very_same_value(store: Store):
    first = resolve("host", store)
    assert resolve("host", store) is first
    assert remembered("host", store) is first
    assert remembered("bench", store) is None


def test_a_resolved_image_that_was_removed_is_found_out(store: Store):
    first = resolve("host", store)
    remove(Store(store.root), "host")
    assert remembered("host", store) is None
    again = resolve("host", store)
    assert again == first
    assert again.layers[0].is_dir()


def test_a_directory_is_used_where_it_is(store: Store, rootfs: Path):
    image = resolve(str(rootfs), store)
    assert image.layers == (rootfs,)
    assert image.binds == ()
    assert not store.root.exists()


def test_a_directorys_key_changes_with_what_is_in_it(store: Store, rootfs: Path):
    before = resolve(str(rootfs), store).key
    (rootfs / "etc/motd").write_text("changed\n")
    assert resolve(str(rootfs), Store(store.root)).key != before


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_an_archive_is_imported_by_content_at_first_use(store: Store, rootfs: Path, tmp_path: Path, suffix: str):
    path = pack(rootfs, tmp_path / f"r.tar{suffix}", f"w:{suffix[1:]}")
    image = resolve(str(path), store)
    assert (image.layers[0] / "etc/motd").read_text() == "hello\n"
    copy = tmp_path / "same-bytes"
    copy.write_bytes(path.read_bytes())
    assert resolve(str(copy), store).key == image.key
    assert len(store.images.manifests()) == 1


def test_an_archive_seen_before_is_known_to_other_processes_by_its_stamp(store: Store, rootfs: Path, tmp_path: Path):
    path = pack(rootfs, tmp_path / "r.tar")
    image = resolve(str(path), store)
    other = Store(store.root)
    assert other.names.recall(path) == (stamp(path.stat()), image.key)
    assert resolve(str(path), other) == image
    other.close()


def test_a_changed_archive_is_another_image(store: Store, rootfs: Path, tmp_path: Path):
    path = pack(rootfs, tmp_path / "r.tar")
    before = resolve(str(path), store)
    (rootfs / "etc/motd").write_text("changed\n")
    pack(rootfs, path)
    after = resolve(str(path), store)
    assert after.key != before.key
    assert (after.layers[0] / "etc/motd").read_text() == "changed\n"


@pytest.mark.parametrize("point", ["dev", "proc", "sys", "tmp", "run", "etc"])
def test_31_an_image_with_a_symlink_where_a_sandbox_mounts_is_refused(
    store: Store, rootfs: Path, tmp_path: Path, point: str
):
    if (rootfs / point).exists():
        for file in (rootfs / point).iterdir():
            file.unlink()
        (rootfs / point).rmdir()
    (rootfs / point).symlink_to("/")
    path = pack(rootfs, tmp_path / "r.tar")
    for name in (str(rootfs), str(path)):
        with pytest.raises(Misuse, match=f"symlink at /{point}") as caught:
            resolve(name, store)
        assert caught.value.field == "image"
    assert store.images.manifests() == []


def test_the_machines_own_root_is_refused(store: Store):
    for name in ("/", "//", "/usr/.."):
        with pytest.raises(Misuse, match="use 'host'"):
            resolve(name, store)


def test_an_unknown_name_lists_the_known_and_the_closest(store: Store):
    with pytest.raises(Misuse) as caught:
        resolve("hots", store)
    assert caught.value.field == "image"
    assert "Did you mean 'host'?" in str(caught.value)
    assert "Known: bench, host" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", " ", "relative/path", "../x", "/absent", "a\0b", "/a\0b", "/dev/null", "x" * 5000, "/" + "x" * 5000]
)
def test_a_name_that_makes_no_sense_is_misuse_and_leaves_nothing(store: Store, name: str):
    with pytest.raises(Misuse) as caught:
        resolve(name, store)
    assert caught.value.field == "image"
    assert not store.root.exists()


def test_bench_that_is_not_built_says_how_to_build_it(store: Store):
    with pytest.raises(Unavailable) as caught:
        resolve("bench", store)
    assert caught.value.enable == "dutyfree image build bench"


def test_an_alias_of_host_is_the_host_image_under_its_own_name(store: Store):
    store.names.give("bench", ALIAS)
    host, bench = resolve("host", store), resolve("bench", store)
    assert (bench.name, bench.key, bench.binds) == ("bench", host.key, host.binds)


def test_an_imported_directory_is_frozen_under_its_name(store: Store, rootfs: Path):
    manifest = import_directory(store, rootfs)
    store.names.give("mine", manifest.key)
    (rootfs / "etc/motd").write_text("changed\n")
    assert (resolve("mine", store).layers[0] / "etc/motd").read_text() == "hello\n"
    assert "mine" in known(store)


def test_the_same_directory_imported_twice_is_one_image(store: Store, rootfs: Path):
    assert import_directory(store, rootfs).key == import_directory(store, rootfs).key


def test_an_import_over_the_cap_leaves_nothing(store: Store, rootfs: Path, tmp_path: Path):
    path = pack(rootfs, tmp_path / "r.tar")
    for bring, source in ((import_archive, path), (import_directory, rootfs)):
        with pytest.raises(Misuse, match="cap"):
            bring(store, source, max_bytes=3)
    assert store.images.manifests() == []
    assert os.listdir(store.root / "building") == []


def test_a_container_images_layers_are_told_from_a_filesystem(store: Store, tmp_path: Path):
    path = tmp_path / "saved.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("manifest.json"), io.BytesIO())
    with pytest.raises(Misuse, match="is no JSON"):
        resolve(str(path), store)


def test_a_name_given_to_another_image_resolves_to_that(store: Store, rootfs: Path):
    store.names.give("mine", import_directory(store, rootfs).key)
    before = resolve("mine", store)
    (rootfs / "etc/motd").write_text("changed\n")
    store.names.give("mine", import_directory(store, rootfs).key)
    assert resolve("mine", store).key != before.key


def test_removing_one_of_two_names_keeps_the_image(store: Store, rootfs: Path):
    key = import_directory(store, rootfs).key
    store.names.give("one", key)
    store.names.give("two", key)
    assert remove(store, "one")
    assert resolve("two", store).key == key
    store.close()
    assert remove(store, "two")
    assert store.images.manifests() == []


def test_an_image_in_use_is_removed_from_view_and_kept_on_disk(store: Store, rootfs: Path):
    store.names.give("mine", import_directory(store, rootfs).key)
    user = Store(store.root)
    fd = os.open(resolve("mine", user).layers[0] / "etc", os.O_RDONLY)
    assert remove(store, "mine") is False
    with pytest.raises(Misuse):
        resolve("mine", store)
    assert os.listdir(fd) == ["motd"]
    os.close(fd)
    user.close()


def test_an_image_without_a_name_is_removed_by_its_key_or_path(store: Store, rootfs: Path, tmp_path: Path):
    path = str(pack(rootfs, tmp_path / "r.tar"))
    key = import_archive(store, Path(path)).key
    assert [(row.name, row.key, row.source) for row in catalogue(store)] == [("", key, path)]
    remove(store, key[:12])
    import_archive(store, Path(path))
    remove(store, path)
    assert catalogue(store) == []


def test_what_is_not_there_cannot_be_removed(store: Store):
    for name in ("absent", "", "..", "ffffffff"):
        with pytest.raises(Misuse, match="to remove"):
            remove(store, name)


@pytest.mark.parametrize("name", ["host", "Upper", "a b", "", "/x", "-x", "x" * 65, "a/b", "é"])
def test_a_bad_name_is_refused(name: str):
    with pytest.raises(Misuse) as caught:
        check_name(name)
    assert caught.value.field == "name"
