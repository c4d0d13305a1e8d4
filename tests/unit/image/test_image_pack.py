import hashlib
import json
import os
import tarfile

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.image.pack import export, reference
from dutyfree.image.resolve import Image


@pytest.fixture
def image(tmp_path):
    upper, lower, bound = (tmp_path / name for name in ("upper", "lower", "bound"))
    (lower / "etc").mkdir(parents=True)
    (lower / "etc" / "same").write_text("hidden")
    (lower / "etc" / "only").write_bytes(b"x" * 512)
    os.link(lower / "etc" / "only", lower / "etc" / "twin")
    (upper / "etc").mkdir(parents=True)
    (upper / "etc" / "same").write_text("seen")
    (upper / "link").symlink_to("etc/same")
    os.mkfifo(upper / "fifo")
    bound.mkdir()
    (bound / "tool").write_text("#!/bin/sh\n")
    (bound / "tool").chmod(0o755)
    return Image(name="mine", key="k" * 64, layers=(upper, lower), binds=((bound, "/usr/bin"),), env={"A": "1"})


def test_a_tar_holds_the_layers_merged_and_what_is_bound(image, tmp_path):
    export(image, "tar", tmp_path / "out")
    with tarfile.open(tmp_path / "out") as archive:
        names = archive.getnames()
        assert sorted(names) == ["etc", "etc/only", "etc/same", "etc/twin", "link", "usr/bin", "usr/bin/tool"]
        assert archive.extractfile("etc/same").read() == b"seen"
        assert archive.getmember("etc/twin").linkname == "etc/only"
        assert archive.getmember("usr/bin/tool").mode == 0o755


@pytest.mark.parametrize("form", ["tar", "docker"])
def test_the_same_image_gives_the_same_bytes(image, tmp_path, form):
    for name in ("one", "two"):
        export(image, form, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_docker_archive_names_config_layers_and_tag(image, tmp_path):
    export(image, "docker", tmp_path / "out")
    with tarfile.open(tmp_path / "out") as archive:
        (entry,) = json.load(archive.extractfile("manifest.json"))
        config = archive.extractfile(entry["Config"]).read()
        layer = archive.extractfile(entry["Layers"][0]).read()
    assert entry["RepoTags"] == [reference(image)] == [f"dutyfree/mine:{'k' * 32}"]
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert json.loads(config)["config"]["Env"] == ["A=1"]


def test_every_blob_of_an_oci_layout_is_what_its_name_says(image, tmp_path):
    export(image, "oci", tmp_path / "out")
    blobs = list((tmp_path / "out" / "blobs" / "sha256").iterdir())
    assert len(blobs) == 3
    for blob in blobs:
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] == reference(image)


def test_a_target_that_exists_is_refused_and_kept(image, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(Misuse, match="exists"):
        export(image, "tar", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"
    with pytest.raises(Misuse, match="no directory"):
        export(image, "tar", tmp_path / "nowhere" / "out")
