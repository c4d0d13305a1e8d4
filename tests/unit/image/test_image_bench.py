"""The benchmarks' rootfs comes from this machine's own archive, or says that it could not."""

import shutil

import pytest

from dutyfree.core.errors import DriverError, Unavailable
from dutyfree.image import bench as image_bench
from dutyfree.image.apt import parse
from dutyfree.image.bench import build, recipe
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Manifest, Store

LISTING = """\
http://one.example/debian/|bookworm|main|amd64
http://one.example/debian/|bookworm|contrib|amd64
http://one.example/debian/|bookworm|main|all
http://one.example/debian/|bookworm-updates|main|amd64
http://two.example/sdk/|cloud-sdk-bookworm|main|amd64
http://three.example/node/|nodistro|main|amd64
broken line
"""


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


def test_only_the_release_itself_and_its_updates_are_used():
    found = parse(LISTING, suite="bookworm", architecture="amd64")
    assert found is not None
    assert found.mirror == "http://one.example/debian/"
    assert found.lines == (
        "deb http://one.example/debian/ bookworm main",
        "deb http://one.example/debian/ bookworm-updates main",
    )


def test_a_machine_without_its_own_release_in_the_sources_has_none():
    assert parse(LISTING, suite="trixie", architecture="amd64") is None
    assert parse("", suite="bookworm", architecture="amd64") is None


def test_the_recipe_is_the_request_and_not_the_mirror():
    one = parse(LISTING, suite="bookworm", architecture="amd64")
    other = parse(LISTING.replace("one.example", "other.example"), suite="bookworm", architecture="amd64")
    assert one is not None
    assert other is not None
    assert recipe("mmdebstrap", one) == recipe("mmdebstrap", other)
    assert recipe("mmdebstrap", one) != recipe("debootstrap", one)


def test_without_a_builder_bench_is_the_host_image_and_says_so(store: Store):
    built = build(store, progress=print, tool="host")
    assert built.manifest is None
    assert "mmdebstrap" in built.notes[0]
    assert resolve("bench", store).key == resolve("host", store).key
    assert build(store, progress=print, tool="host").cached


def test_a_rootfs_that_was_built_is_not_given_up_for_the_host_image_unasked(store: Store, monkeypatch):
    with store.images.building() as building:
        (building.rootfs / "bin").mkdir()
        made = Manifest(key="k", kind="bench", made_s=1.0, size_bytes=0, source="test")
        made = store.publish(building, made, durable=False)
    store.names.give("bench", "k")
    monkeypatch.setenv("PATH", "")
    built = build(store, progress=print)
    assert (built.manifest, built.cached) == (made, True)
    assert store.named("bench") == "k"


def test_a_builder_that_is_asked_for_and_absent_names_the_command(store: Store, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable) as caught:
        build(store, progress=print, tool="mmdebstrap")
    assert caught.value.enable == "apt-get install -y mmdebstrap"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare: apt-get install -y util-linux")
def test_a_builder_that_fails_is_quoted_and_leaves_nothing(store: Store):
    lines: list[str] = []
    with pytest.raises(DriverError, match="no space") as caught, store.images.building() as building:
        image_bench._run(
            ["sh", "-c", "echo starting; echo no space >&2; exit 3"], progress=lines.append, lock_fd=building.lock_fd
        )
    assert "(3)" in str(caught.value)
    assert lines == ["starting", "no space"]
    assert list((store.root / "building").iterdir()) == []
