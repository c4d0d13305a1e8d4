"""kill -9 at every step of importing, snapshots and removal: what is visible afterwards is whole, and the rest goes."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.image import Layout, layer, member

from dutyfree.image.collect import collect
from dutyfree.image.oci.intake import import_path
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Manifest, Store
from dutyfree.image.verify import verify

pytestmark = pytest.mark.slow("a store whose users are killed at every step")

POINTS = 60
"""Steps at which the child is killed, spread over all it takes."""


def killed_at(step: int, act: Callable[[], None]) -> bool:
    """Run `act` in a child that dies before its step-th call to the system that Python can see; whether it did."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def hook(event: str, _: object) -> None:
            nonlocal count
            if event.startswith(("open", "os.", "fcntl.", "shutil.")):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(hook)
            act()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def steps(act: Callable[[Path], None], tmp_path: Path) -> int:
    """How many there are, by halving."""
    low, high = 1, 1 << 14
    while low < high:
        middle = (low + high) // 2
        root = tmp_path / f"count{middle}"
        if killed_at(middle, lambda root=root: act(root)):
            low = middle + 1
        else:
            high = middle
    return low


def check(root: Path) -> Store:
    """What a process that comes later finds."""
    store = Store(root)
    store.images.sweep()
    for place in ("building", "trash"):
        assert not (root / place).exists() or os.listdir(root / place) == []
    assert all(verdict.intact for verdict in verify(store))
    used = set()
    for manifest in store.images.manifests():
        used.update(manifest.layers)
        assert all(path.is_dir() for path in store.images.layer_paths(manifest))
        assert not manifest.temporary
    assert {found.key for found in store.layers.all()} == used
    assert all(store.manifest(key) is not None for name, key in store.names.all().items())
    return store


@pytest.fixture
def image(tmp_path: Path, monkeypatch) -> Path:
    # A killed process is no power cut: what was written is there without it.
    monkeypatch.setattr("dutyfree.image.layer.sync", lambda _: None)
    made = Layout(tmp_path / "layout")
    base = layer(member("etc/"), member("etc/a", b"1"), member("bin/", mode=0o500))
    return made.add(made.manifest([base, layer(member("etc/b", b"2"), member(".wh.bin", b""))])).path


def every(act: Callable[[Path], None], tmp_path: Path) -> list[Path]:
    total = steps(act, tmp_path)
    roots = []
    for index in range(POINTS):
        root = tmp_path / f"kill{index}"
        killed_at(1 + index * total // POINTS, lambda root=root: act(root))
        roots.append(root)
    return roots


def test_an_import_killed_anywhere_leaves_no_half_layer_and_can_be_done_again(image: Path, tmp_path: Path):
    def act(root: Path) -> None:
        store = Store(root)
        store.names.give("mine", import_path(store, image).key)

    for root in every(act, tmp_path):
        store = check(root)
        act(root)
        assert len(resolve("mine", store).layers) == 2
        store.close()
        check(root).close()


def test_snapshots_killed_anywhere_are_there_or_not(image: Path, tmp_path: Path):
    def act(root: Path) -> None:
        store = Store(root)
        base = import_path(store, image)
        for name, temporary in (("kept", False), ("short", True)):
            with store.draft_layer() as draft:
                (draft.rootfs / name).write_text("x")
                key = store.publish_layer(draft, durable=False)
            store.save_snapshot(name, (key, *base.layers), temporary=temporary)
        store.remove_snapshot("kept")
        store.close()

    for root in every(act, tmp_path):
        store = check(root)
        assert set(store.names.all()) <= {"snapshot:kept"}
        for name in store.names.all():
            assert len(resolve(name, store).layers) == 3
        store.close()


def test_collecting_killed_anywhere_leaves_whole_images(image: Path, tmp_path: Path):
    def act(root: Path) -> None:
        store = Store(root)
        store.names.give("mine", import_path(store, image).key)
        for name in ("one", "two"):
            with store.draft_layer() as draft:
                (draft.rootfs / name).write_text("x" * 100)
                store.save_snapshot(name, (store.publish_layer(draft, durable=False),))
        collect(store.images, keep_bytes=10)

    for root in every(act, tmp_path):
        check(root).close()


def test_many_processes_may_import_remove_and_collect_at_once(image: Path, tmp_path: Path):
    root = tmp_path / "store"
    layers = [layer(member("etc/"), member("etc/x", bytes([index]) * 10_000)) for index in range(3)]
    made = Layout(tmp_path / "other")
    other = made.add(made.manifest(layers)).path

    def work(seed: int) -> None:
        store = Store(root, limit_bytes=15_000)
        for turn in range(6):
            path = (image, other)[(seed + turn) % 2]
            found = resolve_held(store, path)
            assert all(any(place.iterdir()) for place in store.images.layer_paths(found))
            with store.draft_layer() as draft:
                (draft.rootfs / "own").write_text(f"{seed} {turn}")
                key = store.publish_layer(draft, durable=False)
            store.save_snapshot(f"s{seed}-{turn}", (key, *found.layers), temporary=turn % 2 == 0)
            if turn % 3 == 0:
                store.remove_snapshot(f"s{seed}-{turn}")
        store.close()

    children = []
    for seed in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(seed)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0, 0]
    check(root).close()


def resolve_held(store: Store, path: Path) -> Manifest:
    """Import an image and hold it; another's collector may come between, then once more."""
    while True:
        found = import_path(store, path)
        if store.images.hold(found.key):
            return found
