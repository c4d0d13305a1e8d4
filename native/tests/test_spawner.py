"""The spawner against its header: sound orders, unsound ones, and its end."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import order
import pytest
from order import CREATE, DESTROYED, DIED, DISK, FAILED, GONE, LAYER, LAYERED, LIFETIME, READY, SETTLED, Owner

NATIVE = Path(__file__).resolve().parent.parent
BASE = 7


@pytest.fixture(
    scope="session",
    params=["build", pytest.param("build-sanitize", marks=pytest.mark.slow("the C programs under sanitizers"))],
)
def spawner(request: pytest.FixtureRequest) -> Path:
    flags = ["SANITIZE=1"] if request.param == "build-sanitize" else []
    target = f"{request.param}/dutyfree-spawner"
    subprocess.run(
        ["flock", str(NATIVE), "make", "-s", "-C", str(NATIVE), *flags, target], check=True, stdout=subprocess.DEVNULL
    )
    return NATIVE / target


@pytest.fixture
def owner(spawner: Path, tmp_path: Path) -> Iterator[Owner]:
    """A spawner that is up and knows an empty directory as layer 7."""
    (tmp_path / "root").mkdir()
    owner = Owner.start(spawner)
    ready = owner.event()
    if ready.error:
        pytest.skip(f"no sandbox can be made here: {ready.detail}: {os.strerror(ready.error)}; see: dutyfree doctor")
    owner.send(order.layer(BASE, bytes(tmp_path / "root")))
    assert owner.event() == (LAYERED, BASE, 0, 0, "")
    yield owner
    assert owner.end() == 0


def test_it_says_what_it_can_do(spawner: Path):
    owner = Owner.start(spawner, cgroup="none")
    ready = owner.event()
    assert (ready.kind, ready.error) == (READY, 0)
    assert ready.detail.startswith("none;")
    assert ready.detail.endswith("switched off")
    assert owner.end() == 0


def test_it_is_not_for_use_by_hand(spawner: Path):
    done = subprocess.run([spawner], capture_output=True, check=False)
    assert done.returncode == 64
    assert b"usage" in done.stderr


def test_it_ends_at_once_if_its_owner_is_not_its_parent(spawner: Path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        words = [spawner, "--control", str(theirs.fileno()), "--owner", "1"]
        assert subprocess.run(words, pass_fds=[theirs.fileno()], check=False).returncode == 0


def test_a_sandbox_greets_and_is_gone_when_told(owner: Owner):
    with owner.boot(1, [BASE]):
        owner.send(order.destroy(1))
        event = owner.event()
        assert (event.kind, event.tag, event.reason) == (GONE, 1, DESTROYED)
    assert owner.children() == []


def test_a_sandbox_whose_stream_ends_is_gone_by_itself(owner: Owner):
    owner.boot(1, [BASE]).close()
    event = owner.event()
    assert (event.kind, event.tag, event.reason) == (GONE, 1, DIED)


def test_a_lifetime_ends_a_sandbox(owner: Owner):
    with owner.boot(1, [BASE], lifetime_ns=50_000_000):
        event = owner.event()
        assert (event.kind, event.tag, event.reason) == (GONE, 1, LIFETIME)


def test_destroying_what_is_not_there_is_answered(owner: Owner):
    owner.send(order.destroy(99))
    assert owner.event()[:4] == (GONE, 99, 0, DESTROYED)


def test_a_layer_that_does_not_exist_is_told_with_its_errno(owner: Owner):
    owner.send(order.layer(8, b"/nonexistent"))
    event = owner.event()
    assert (event.kind, event.tag, event.error) == (LAYERED, 8, errno.ENOENT)


@pytest.mark.parametrize(
    ("number", "error"), [(BASE, errno.EEXIST), (1 << 20, errno.ENOSPC), (2**32 - 1, errno.ENOSPC)]
)
def test_a_layer_number_that_is_taken_or_too_large_is_refused(owner: Owner, number: int, error: int):
    owner.send(order.layer(number, b"/"))
    event = owner.event()
    assert (event.kind, event.tag, event.error) == (LAYERED, number, error)


UNSOUND = {
    "short": order.create(5, [BASE])[:-1],
    "long": order.create(5, [BASE]) + b"x",
    "no-layers": order.create(5, []),
    "too-many-layers": order.create(5, [BASE], layer_count=61),
    "huge-layer-count": order.create(5, [BASE], layer_count=2**32 - 1),
    "too-many-binds": order.create(5, [BASE], bind_count=9),
    "target-without-end": order.create(5, [BASE], bind_count=1, target=b"x" * 64),
    "disk-without-descriptor": order.create(5, [BASE], flags=DISK),
    "head-only": order.create(5, [BASE])[:8],
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_order_is_refused_and_leaves_nothing(owner: Owner, name: str):
    before = owner.descriptors(), owner.children()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        owner.send(UNSOUND[name], [theirs.fileno()])
        event = owner.event()
    assert (event.kind, event.tag, event.error) == (FAILED, 5, errno.EINVAL)
    owner.quiet()
    assert (owner.descriptors(), owner.children()) == before


@pytest.mark.parametrize("count", [0, 2, 40])
def test_an_order_with_the_wrong_number_of_descriptors_is_refused(owner: Owner, count: int):
    before = owner.descriptors()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        owner.send(order.create(5, [BASE]), [null] * count)
        event = owner.event()
    finally:
        os.close(null)
    assert (event.kind, event.tag, event.error) == (FAILED, 5, errno.EINVAL)
    owner.quiet()
    assert owner.descriptors() == before


def test_an_unknown_layer_is_refused_and_the_next_order_works(owner: Owner):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        owner.send(order.create(5, [3]), [theirs.fileno()])
        event = owner.event()
    assert (event.kind, event.tag, event.error) == (FAILED, 5, errno.ENOENT)
    owner.boot(6, [BASE]).close()
    assert owner.event()[:2] == (GONE, 6)


def test_a_bind_target_that_climbs_stays_inside(owner: Owner, tmp_path: Path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        packet = order.create(5, [BASE], bind_count=1, target=b"/../../../" + bytes(tmp_path) + b"/x")
        owner.send(packet, [theirs.fileno()])
        theirs.close()
        ours.settimeout(order.PATIENCE_S)
        greeted = bool(ours.recv(4096))
        if greeted:
            owner.send(order.destroy(5))
        event = owner.event()
    assert (event.kind, event.tag) in ((FAILED, 5), (GONE, 5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]


@pytest.mark.parametrize("seed", range(8))
def test_garbage_does_not_end_it_and_leaves_nothing(owner: Owner, seed: int):
    chance = random.Random(seed)
    null = os.open(os.devnull, os.O_RDONLY)
    before = owner.descriptors()
    try:
        for _ in range(200):
            packet = bytearray(chance.randbytes(chance.choice((1, 4, 7, 8, 15, 16, 17, 100, 900, 8000, 20000))))
            if chance.random() < 0.5 and len(packet) >= 8:
                # A known type, but never a number that is taken or a stock of hundreds: those are sound requests.
                packet[:4] = chance.choice((LAYER, CREATE, 3, 5, 6, 8, 0, 9, 255)).to_bytes(4, "little")
            owner.send(bytes(packet), [null] * chance.choice((0, 0, 1, 2, 20)))
    finally:
        os.close(null)
    owner.send(order.destroy(0xFFFFFFFF))
    while owner.event()[:2] != (GONE, 0xFFFFFFFF):
        pass  # the answers to what happened to look like requests
    owner.boot(1, [BASE]).close()
    while owner.event()[:2] != (GONE, 1):
        pass
    # A slot keeps a few descriptors for the next sandbox; two hundred packets would have left hundreds.
    assert owner.descriptors() - before < 16


def test_a_hundred_sandboxes_leave_no_descriptor_and_no_child(owner: Owner):
    owner.boot(1, [BASE]).close()
    assert owner.event()[:2] == (GONE, 1)
    owner.quiet()
    before = owner.descriptors()
    for tag in range(2, 102):
        owner.boot(tag, [BASE]).close()
        assert owner.event()[:2] == (GONE, tag)
    owner.quiet()
    assert owner.descriptors() == before
    assert owner.children() == []


def test_blanks_serve_orders_and_are_made_again(owner: Owner):
    owner.send(order.stock(3))
    for tag in range(1, 20):
        owner.boot(tag, [BASE]).close()
        assert owner.event()[:2] == (GONE, tag)
    assert len(owner.children()) <= 4


STAGE = "upper"
"""What is seen in the root of a blank that has not been given one of its own."""


def waiting(owner: Owner) -> dict[int, set[str]]:
    """Each child, and what its root holds beside what every root gets."""
    roots = {}
    for pid in owner.children():
        with contextlib.suppress(FileNotFoundError):  # it has just died
            roots[pid] = set(os.listdir(f"/proc/{pid}/root")) - {"proc", "dev", "sys"}
    return roots


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + order.PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


def order_twice(owner: Owner, layer: int, first_tag: int, flags: int) -> None:
    for tag in (first_tag, first_tag + 1):
        owner.boot(tag, [layer], flags=flags).close()
        assert owner.event()[:2] == (GONE, tag)


def test_blanks_wait_with_the_root_of_the_last_two_orders(owner: Owner, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mark").touch()
    owner.send(order.layer(8, bytes(tmp_path / "other")))
    assert owner.event() == (LAYERED, 8, 0, 0, "")
    owner.send(order.stock(4))
    order_twice(owner, BASE, 1, SETTLED)
    wait_until(lambda: sorted(map(len, waiting(owner).values()))[:3] == [0, 0, 0] and len(waiting(owner)) == 4)
    ready = {pid for pid, root in waiting(owner).items() if not root}
    assert len(ready) == 3
    with owner.boot(3, [BASE], flags=SETTLED):
        pass
    assert owner.event()[:2] == (GONE, 3)
    assert len(ready - set(owner.children())) == 1  # it was one of those that waited

    # Another root takes a blank that has none; after two such orders those that wait are exchanged.
    order_twice(owner, 8, 4, SETTLED)
    wait_until(lambda: list(waiting(owner).values()).count({"mark"}) == 3 and len(waiting(owner)) == 4)


def test_a_root_that_may_change_is_mounted_when_it_is_ordered(owner: Owner):
    owner.send(order.stock(2))
    order_twice(owner, BASE, 1, 0)
    order_twice(owner, BASE, 3, 0)
    wait_until(lambda: [STAGE in root for root in waiting(owner).values()] == [True, True])


def test_its_end_is_the_end_of_every_sandbox(spawner: Path, tmp_path: Path):
    owner = Owner.start(spawner)
    owner.event()
    owner.send(order.layer(BASE, bytes(tmp_path)))
    owner.event()
    streams = [owner.boot(tag, [BASE]) for tag in range(1, 9)]
    children = owner.children()
    assert len(children) >= 8
    assert owner.end() == 0
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    for stream in streams:
        assert stream.recv(4096) == b""
        stream.close()


def test_sigterm_ends_it_in_order(spawner: Path, tmp_path: Path):
    owner = Owner.start(spawner)
    owner.event()
    owner.send(order.layer(BASE, bytes(tmp_path)))
    owner.event()
    with owner.boot(1, [BASE]):
        owner.process.send_signal(signal.SIGTERM)
        assert owner.process.wait(order.PATIENCE_S) == 0
    assert owner.end() == 0
