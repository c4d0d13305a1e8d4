"""A stack made shorter shows the same, to us and to the kernel."""

import os
import subprocess
from pathlib import Path

import pytest

from dutyfree.image.stack import shorten
from dutyfree.image.store import MAX_LAYERS, Store
from dutyfree.image.view import View, make_opaque

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting is root's: sudo make test")

LIST = r"find . -mindepth 1 -printf '%P %y %m %U %G %l ' \( -type f -exec cat {} \; -o -true \) -printf '\n' | sort"


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


def draw(store: Store, *marks: str) -> str:
    """A layer: `a=1` a file, `a/` a directory, `a/!` an opaque one, `-a` a whiteout, `a>b` a symlink."""
    with store.draft_layer() as draft:
        for mark in marks:
            if mark.startswith("-"):
                os.mknod(draft.rootfs / mark[1:], 0o020000, 0)
            elif mark.endswith("/!"):
                (draft.rootfs / mark[:-2]).mkdir()
                make_opaque(draft.rootfs / mark[:-2])
            elif mark.endswith("/"):
                (draft.rootfs / mark).mkdir(mode=0o710)
            elif ">" in mark:
                (draft.rootfs / mark.partition(">")[0]).symlink_to(mark.partition(">")[2])
            else:
                (draft.rootfs / mark.partition("=")[0]).write_text(mark.partition("=")[2])
        return store.publish_layer(draft, durable=False)


LAYERS = (
    ("d/", "d/a=1", "d/b=1", "e/", "e/x=1", "f=1", "g/", "g/deep/", "g/deep/q=1", "h/", "h/1=1"),
    ("d/", "-d/a", "d/c=2", "-e", "f/", "f/in=2", "g/!", "g/new=2", "k>d"),
    ("d/", "d/a=3", "e/", "e/y=3", "-f", "g/", "-g/new", "h=3"),
    ("f/", "f/z=4", "h/", "h/2=4", "-k"),
)


def mounted(store: Store, layers: tuple[str, ...]) -> str:
    """What the kernel shows of a stack."""
    below = ":".join(str(store.layers.path(key)) for key in layers)
    script = f'mount -t overlay overlay -o ro,lowerdir="$1" "$2" && cd "$2" && {LIST}'
    target = store.root / "mount"
    target.mkdir(exist_ok=True)
    command = ["unshare", "-m", "--propagation", "private", "sh", "-ec", script, "sh", below, str(target)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def seen(store: Store, layers: tuple[str, ...]) -> set[str]:
    return {place for place, _ in View([store.layers.path(key) for key in layers]).walk()}


@pytest.mark.parametrize("at_most", [1, 2, 3])
def test_a_shorter_stack_shows_what_the_longer_one_does(store: Store, at_most: int):
    keys = tuple(reversed([draw(store, *marks) for marks in LAYERS]))
    base = draw(store, "d/", "d/a=0", "e/", "e/old=0", "g/", "g/old=0", "f/", "f/old=0", "h/", "h/old=0", "k=0")
    shorter = shorten(store.images, (*keys, base), at_most + 1)
    assert len(shorter) == at_most + 1
    assert shorter[-1] == base
    assert mounted(store, shorter) == mounted(store, (*keys, base))


def test_the_view_shows_what_the_kernel_does(store: Store):
    keys = tuple(reversed([draw(store, *marks) for marks in LAYERS]))
    assert seen(store, keys) == {line.split()[0] for line in mounted(store, keys).splitlines()}


def test_a_short_stack_stays_as_it_is(store: Store):
    assert shorten(store.images, ("a", "b"), 2) == ("a", "b")


def test_snapshots_of_snapshots_never_get_too_deep(store: Store):
    layers: tuple[str, ...] = ()
    for index in range(MAX_LAYERS + 3):
        layers = store.save_snapshot(f"s{index}", (draw(store, f"{index}=x", f"same={index}"), *layers)).layers
    assert len(layers) == MAX_LAYERS
    assert seen(store, layers) == {"same", *(str(index) for index in range(MAX_LAYERS + 3))}
    assert (View([store.layers.path(key) for key in layers]).entry(("same",)).path).read_text() == str(MAX_LAYERS + 2)
