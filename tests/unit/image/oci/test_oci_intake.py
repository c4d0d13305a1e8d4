"""Images come in whole, checked, and once."""

import gzip
import json
import lzma
import os
import shutil
from pathlib import Path

import pytest
from support.image import OCI, Layout, config, digest, layer, link, member, packed, saved

from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.image.oci.document import this_platform
from dutyfree.image.oci.intake import import_path
from dutyfree.image.resolve import resolve
from dutyfree.image.stack import MAX_IMPORTED
from dutyfree.image.store import Store
from dutyfree.image.view import View

BASE = layer(member("etc/"), member("etc/a", b"1"), member("bin/"))
TOP = layer(member("etc/"), member("etc/b", b"2"), member("etc/.wh.a", b""))
OTHER = "linux/s390x" if this_platform() != "linux/s390x" else "linux/amd64"


def shown(store: Store, path: Path, **options) -> set[str]:
    manifest = import_path(store, path, **options)
    return {place for place, _ in View(store.images.layer_paths(manifest)).walk()}


def layout(tmp_path: Path, *layers: bytes, name: str = "layout", **options) -> Path:
    made = Layout(tmp_path / name)
    return made.add(made.manifest(layers or (BASE, TOP), **options)).path


def zstd(content: bytes) -> bytes:
    module = pytest.importorskip("backports.zstd", reason="zstd is in the `oci` extra before Python 3.14: make develop")
    return module.compress(content)


def leftovers(store: Store) -> list[str]:
    return os.listdir(store.root / "building") + os.listdir(store.root / "trash")


@pytest.mark.parametrize("squeeze", [gzip.compress, zstd, bytes, lzma.compress])
def test_a_layout_becomes_a_stack_of_layers(store: Store, tmp_path: Path, squeeze):
    assert shown(store, layout(tmp_path, squeeze=squeeze)) == {"etc", "etc/b", "bin"}
    assert leftovers(store) == []


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_layout_in_a_tar_is_the_same_image(store: Store, tmp_path: Path, pack):
    place = layout(tmp_path)
    tar = packed(place, tmp_path / "plain.tar")
    (tmp_path / "image.tar").write_bytes(pack(tar.read_bytes()))
    assert import_path(store, tmp_path / "image.tar").key == import_path(store, place).key


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_saved_archive_is_read_with_its_repeated_layers(store: Store, tmp_path: Path, pack):
    path = saved(tmp_path / "plain.tar", (BASE, TOP, BASE))
    (tmp_path / "saved.tar").write_bytes(pack(path.read_bytes()))
    assert shown(store, tmp_path / "saved.tar") == {"etc", "etc/a", "etc/b", "bin"}


def test_a_saved_archive_is_an_image_by_its_path(store: Store, tmp_path: Path):
    path = saved(tmp_path / "saved.tar", (BASE, TOP), said={"Env": ["A=1"]})
    image = resolve(str(path), store)
    assert len(image.layers) == 2
    assert image.env == {"A": "1"}
    assert resolve(str(path), store) is image


def test_env_workdir_user_entrypoint_and_cmd_are_kept(store: Store, tmp_path: Path):
    said = {
        "Env": ["PATH=/bin", "A=b=c", "bad", "=x"], "WorkingDir": "/etc/", "User": "1000:7",
        "Entrypoint": ["/bin/sh"], "Cmd": ["-c", "true"],
    }  # fmt: skip
    manifest = import_path(store, layout(tmp_path, said=said))
    assert manifest.env == {"PATH": "/bin", "A": "b=c"}
    assert (manifest.cwd, manifest.user, manifest.entrypoint) == ("/etc", "1000:7", ("/bin/sh", "-c", "true"))
    store.names.give("mine", manifest.key)
    image = resolve("mine", store)
    assert (image.cwd, image.user, image.env) == ("/etc", "1000:7", manifest.env)
    assert len(image.layers) == 2


def test_a_workdir_that_is_missing_is_made_as_engines_do(store: Store, tmp_path: Path):
    assert shown(store, layout(tmp_path, said={"WorkingDir": "/etc/new/work"})) >= {"etc/new", "etc/new/work", "etc/b"}


def test_images_share_the_layers_they_have_in_common(store: Store, tmp_path: Path):
    one = import_path(store, layout(tmp_path, BASE, TOP, name="one"))
    two = import_path(store, layout(tmp_path, BASE, layer(member("x", b"")), name="two"))
    assert one.layers[-1] == two.layers[-1]
    assert len(os.listdir(store.root / "layers")) == 3


def test_the_index_is_narrowed_to_the_platform(store: Store, tmp_path: Path):
    made = Layout(tmp_path / "layout")
    ours, theirs = made.manifest([BASE]), made.manifest([TOP], platform=OTHER)
    entries = [
        theirs | {"platform": dict(zip(("os", "architecture"), OTHER.split("/"), strict=True))},
        made.manifest([layer(member("no", b""))]) | {"platform": {"os": "unknown", "architecture": "unknown"}},
        ours | {"platform": dict(zip(("os", "architecture"), this_platform().split("/"), strict=True))},
    ]
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": entries}
    made.add(made.blob(json.dumps(index).encode(), f"{OCI}.index.v1+json"))
    assert shown(store, made.path) == {"etc", "etc/a", "bin"}
    assert shown(store, made.path, platform=OTHER) == {"etc", "etc/b"}
    with pytest.raises(Misuse, match=f"has no linux/none; it has .*{OTHER}"):
        import_path(store, made.path, platform="linux/none")


def test_an_image_for_another_machine_is_refused(store: Store, tmp_path: Path):
    with pytest.raises(Misuse, match=f"is for {OTHER}"):
        import_path(store, layout(tmp_path, platform=OTHER))


def test_one_of_several_images_is_chosen_by_its_name(store: Store, tmp_path: Path):
    made = Layout(tmp_path / "layout")
    made.add(made.manifest([BASE]), name="one").add(made.manifest([TOP]), name="two")
    assert shown(store, made.path, reference="two") == {"etc", "etc/b"}
    with pytest.raises(Misuse, match="--reference \\(one, two\\)"):
        import_path(store, made.path)
    with pytest.raises(Misuse, match="it has one, two") as caught:
        import_path(store, made.path, reference="three")
    assert caught.value.field == "reference"


def test_a_deep_image_is_made_shorter(store: Store, tmp_path: Path):
    layers = [
        layer(member(f"f{index}", b"x"), member("same", str(index).encode())) for index in range(MAX_IMPORTED + 9)
    ]
    manifest = import_path(store, layout(tmp_path, *layers))
    assert len(manifest.layers) == MAX_IMPORTED
    view = View(store.images.layer_paths(manifest))
    assert len(list(view.walk())) == MAX_IMPORTED + 10
    assert view.entry(("same",)).path.read_text() == str(MAX_IMPORTED + 8)
    assert len(os.listdir(store.root / "layers")) == MAX_IMPORTED + 9 + 1
    store.images.sweep()
    assert set(os.listdir(store.root / "layers")) == set(manifest.layers)


def spoil(path: Path, which: str) -> None:
    blobs = sorted((path / "blobs/sha256").iterdir(), key=lambda blob: blob.stat().st_size)
    for blob in blobs:
        content = blob.read_bytes()
        is_layer = content.startswith(b"\x1f\x8b")
        is_config = b'"rootfs"' in content
        kind = "layer" if is_layer else "config" if is_config else "manifest"
        if kind == which:
            blob.write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])


@pytest.mark.parametrize("which", ["layer", "config", "manifest"])
def test_a_single_wrong_bit_is_refused_and_leaves_nothing(store: Store, tmp_path: Path, which: str):
    place = layout(tmp_path, BASE)
    spoil(place, which)
    with pytest.raises(Misuse, match="damaged"):
        import_path(store, place)
    assert store.images.manifests() == []
    assert not os.path.exists(store.root / "layers") or os.listdir(store.root / "layers") == []


def test_a_layer_that_is_not_the_one_of_the_configuration_is_refused(store: Store, tmp_path: Path):
    path = saved(tmp_path / "saved.tar", (BASE,))
    path.write_bytes(path.read_bytes().replace(b"etc/a\0", b"etc/z\0"))
    with pytest.raises(Misuse):
        import_path(store, path)
    assert leftovers(store) == []


@pytest.mark.parametrize("point", ["dev", "proc", "etc"])
def test_a_symlink_where_a_sandbox_mounts_is_refused_also_over_a_directory(store: Store, tmp_path: Path, point: str):
    with pytest.raises(Misuse, match=f"symlink at /{point}"):
        import_path(store, layout(tmp_path, BASE, layer(link(point, "/"))))
    store.images.sweep()
    assert os.listdir(store.root / "layers") == []


def test_an_image_over_the_cap_is_refused(store: Store, tmp_path: Path):
    with pytest.raises(Misuse, match="cap"):
        import_path(store, layout(tmp_path, layer(member("a", b"123")), layer(member("b", b"456"))), max_bytes=5)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"manifests": "x"}, {"manifests": [1]}, {"manifests": []}, {"manifests": [{"digest": "sha256:../../x", "size": 1}]},
        {"manifests": [{"digest": "sha256:" + "0" * 64, "size": -1}]}, {"manifests": [{"digest": "sha256:" + "0" * 64, "size": 1}]},
        {"manifests": [{"digest": "sha256:" + "0" * 64, "size": 1 << 40}]}, [], 7,
    ],
)  # fmt: skip
def test_an_index_that_makes_no_sense_is_misuse(store: Store, tmp_path: Path, spoiled):
    place = layout(tmp_path)
    (place / "index.json").write_text(json.dumps(spoiled))
    with pytest.raises(Misuse) as caught:
        import_path(store, place)
    assert caught.value.field == "image"


def test_zstd_without_its_module_says_what_to_install(store: Store, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(Unsupported, match=r"dutyfree\[oci\]"):
        import_path(store, layout(tmp_path, squeeze=lambda content: b"\x28\xb5\x2f\xfd" + content))


def first_is(name: str, path: Path, *, gz: bool = False) -> Path:
    """An archive as others than docker write it: the layer first, under a name of their own."""
    text = config((BASE,))
    manifest = [{"Config": "config.json", "RepoTags": ["a:1"], "Layers": [name]}]
    members = [member(name, gzip.compress(BASE) if gz else BASE), member("config.json", text)]
    path.write_bytes(layer(*members, member("manifest.json", json.dumps(manifest).encode())))
    return path


@pytest.mark.parametrize("name", [f"{7:064x}.tar", f"{7:064x}.tar.gz", "./sha256:" + f"{7:064x}", "base.tar"])
def test_an_archive_that_begins_with_a_layer_is_an_image_whoever_wrote_it(store: Store, tmp_path: Path, name: str):
    path = first_is(name, tmp_path / "saved.tar", gz=name.endswith("gz"))
    assert {place for place, _ in View(resolve(str(path), store).layers).walk()} == {"etc", "etc/a", "bin"}
    with pytest.raises(Misuse, match="is damaged"):
        resolve(str(spoiled(path, tmp_path / "spoiled.tar")), store)


def spoiled(path: Path, target: Path) -> Path:
    """The same, with other bytes than its configuration names."""
    target.write_bytes(path.read_bytes().replace(digest(BASE).encode(), digest(TOP).encode()))
    return target


def test_a_directory_as_podman_saves_it_is_an_image(store: Store, tmp_path: Path):
    made = Layout(tmp_path / "layout")
    entry = made.manifest((BASE, TOP))
    folder = tmp_path / "saved"
    shutil.copytree(made.path / "blobs/sha256", folder)
    (folder / entry["digest"].removeprefix("sha256:")).rename(folder / "manifest.json")
    assert shown(store, folder) == {"etc", "etc/b", "bin"}


def test_parts_of_an_image_are_refused_without_sending_anybody_in_circles(store: Store, tmp_path: Path):
    (tmp_path / "parts.tar").write_bytes(layer(member("version", b"1"), member("repositories", b"{}")))
    with pytest.raises(Misuse, match="save the whole image again"):
        resolve(str(tmp_path / "parts.tar"), store)
