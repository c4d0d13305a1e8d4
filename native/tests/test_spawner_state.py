"""Snapshots and inspections by the spawner, with what hostile code may leave behind: put there from outside."""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import order
import pytest
from order import GONE, LAYERED, Owner
from test_spawner import BASE, spawner  # noqa: F401 (a fixture)
from trespass import UPPER_FD, trespass

SNAPSHOT, ABANDON, FORGET, INSPECT = 5, 6, 7, 8
SAVED, INSPECTED = 5, 6
DEEP = 900
"""Levels, each with a long name: far more than a path could hold."""
LONG = "d" * 100
PLACES = 3
"""The empty image lacks /proc, /dev and /sys: the sandbox has made them."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="snapshots need root: sudo make test")


def save(number: int, sandbox: int, *, layer: int = 0, source: int = 0, path: bytes = b"") -> bytes:
    return struct.pack("=IIIII", SNAPSHOT, number, sandbox, layer, source) + path + b"\0"


@pytest.fixture
def owner(spawner: Path, tmp_path: Path) -> Iterator[Owner]:  # noqa: F811
    (tmp_path / "root").mkdir()
    (tmp_path / "target").mkdir(exist_ok=True)
    owner = Owner.start(spawner)
    assert owner.event().error == 0
    owner.send(order.layer(BASE, bytes(tmp_path / "root")))
    assert owner.event() == (LAYERED, BASE, 0, 0, "")
    yield owner
    assert owner.end() == 0


class Written:
    """What a sandbox has written, seen from outside."""

    def __init__(self, owner: Owner) -> None:
        self.pid = owner.children()[0]
        self.path = Path(f"/proc/{self.pid}/fd/{UPPER_FD}")
        self.first_id = self.path.stat().st_uid

    def state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def written(owner: Owner) -> Iterator[Written]:
    with owner.boot(1, [BASE]):
        yield Written(owner)
        owner.send(order.destroy(1))
        while owner.event()[:2] != (GONE, 1):
            pass


def saved(owner: Owner, target: Path, **options: int) -> str:
    owner.send(save(9, 1, path=bytes(target), **options))
    event = owner.event()
    assert (event.kind, event.tag, event.error) == (SAVED, 9, 0), event
    return event.detail


def write_every_kind() -> None:
    Path("file").write_bytes(b"content")
    os.chown("file", 33, 44)
    os.chmod("file", 0o4751)
    os.setxattr("file", "user.note", b"kept")
    os.utime("file", ns=(1_000_000_000_000_000_007, 1_100_000_000_000_000_009))
    os.link("file", "twin")
    os.symlink("/etc/shadow", "link")
    os.mkfifo("fifo", 0o600)
    os.mknod("gone", stat.S_IFCHR, os.makedev(0, 0))
    Path("opaque").mkdir(mode=0o700)
    os.setxattr("opaque", "user.overlay.opaque", b"y")
    os.setxattr("opaque", "user.overlay.impure", b"y")
    with Path("sparse").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"island")


def test_every_kind_of_entry_is_copied_with_all_that_belongs_to_it(owner: Owner, written: Written, tmp_path: Path):
    trespass(written.pid, write_every_kind)
    target = tmp_path / "target"
    assert saved(owner, target).startswith(f"{7 + PLACES};")
    about = (target / "file").stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (33, 44, 0o4751)
    assert about.st_mtime_ns == 1_100_000_000_000_000_009
    assert (target / "file").read_bytes() == b"content"
    assert os.getxattr(target / "file", "user.note") == b"kept"
    assert (target / "twin").samefile(target / "file")
    assert os.readlink(target / "link") == "/etc/shadow"
    assert stat.S_ISFIFO((target / "fifo").stat().st_mode)
    assert (target / "gone").stat().st_rdev == 0
    assert stat.S_ISCHR((target / "gone").stat().st_mode)
    assert os.getxattr(target / "opaque", "user.overlay.opaque") == b"y"
    assert os.listxattr(target / "opaque") == ["user.overlay.opaque"]
    about = (target / "sparse").stat()
    assert (about.st_size, about.st_blocks * 512 < 1 << 20) == (1 << 40, True)
    with (target / "sparse").open("rb") as file:
        file.seek(1 << 30)
        assert file.read(6) == b"island"
    assert {path.name for path in target.iterdir()} - {"proc", "dev", "sys"} == {
        "file",
        "twin",
        "link",
        "fifo",
        "gone",
        "opaque",
        "sparse",
    }


def dig() -> None:
    for _ in range(DEEP):
        Path(LONG).mkdir()
        os.chdir(LONG)


def test_a_tree_deeper_than_any_path_is_copied(owner: Owner, written: Written, tmp_path: Path):
    trespass(written.pid, dig)
    assert saved(owner, tmp_path / "target") == f"{DEEP + PLACES};0"
    at = os.open(tmp_path / "target", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(DEEP):
        inner = os.open(LONG, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = inner
    assert os.listdir(at) == []
    os.close(at)


MANY, MANY_BYTES = 200, 40_000
"""Enough that a second thread takes its share."""


def many_files(number: int) -> bytes:
    return bytes([number]) * (MANY_BYTES + number)


def write_many_kinds() -> None:
    for number in range(MANY):
        Path(f"{number}").write_bytes(many_files(number))
        os.setxattr(f"{number}", "user.number", str(number).encode())
        os.chmod(f"{number}", 0o400 + number % 64)
        os.link(f"{number}", f"twin-{number}")
        os.utime(f"{number}", ns=(number, 1_000_000_007 * number))


def test_each_of_many_files_is_copied_with_all_that_belongs_to_it(owner: Owner, written: Written, tmp_path: Path):
    trespass(written.pid, write_many_kinds)
    target = tmp_path / "target"
    total = sum(len(many_files(number)) for number in range(MANY))
    assert saved(owner, target) == f"{2 * MANY + PLACES};{total}"
    for number in range(MANY):
        copy = target / f"{number}"
        about = copy.stat()
        assert copy.read_bytes() == many_files(number)
        assert os.getxattr(copy, "user.number") == str(number).encode()
        assert (stat.S_IMODE(about.st_mode), about.st_mtime_ns) == (0o400 + number % 64, 1_000_000_007 * number)
        assert (target / f"twin-{number}").samefile(copy)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A target without much room, mounted before the spawner has a view of its own."""
    target = tmp_path / "target"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", target], check=True)
    yield target
    subprocess.run(["umount", target], check=True)


def test_a_target_without_room_is_an_error_whichever_thread_met_it(small: Path, owner: Owner, written: Written):
    trespass(written.pid, write_many_kinds)
    owner.send(save(9, 1, path=bytes(small)))
    event = owner.event()
    assert (event.kind, event.error, event.detail) == (SAVED, errno.ENOSPC, "copy a file")


def test_a_layer_in_memory_can_be_ordered_copied_on_and_given_up(owner: Owner, written: Written, tmp_path: Path):
    trespass(written.pid, lambda: write_one("file", 100_000))
    owner.send(save(9, 1, layer=5))
    assert owner.event()[:4] == (SAVED, 9, 0, 0)
    with owner.boot(2, [5, BASE]):
        owner.send(save(10, 2, source=5, path=bytes(tmp_path / "target")))
        event = owner.event()
        assert (event.kind, event.tag, event.error, event.detail) == (SAVED, 10, 0, f"{1 + PLACES};100000")
        owner.send(struct.pack("=IIII", FORGET, 0, 5, 0))
        owner.send(order.destroy(2))
        assert owner.event()[:2] == (GONE, 2)
    owner.send(save(11, 1, layer=5))
    assert owner.event()[:3] == (SAVED, 11, 0)
    assert (tmp_path / "target" / "file").stat().st_uid == 0


def write_one(name: str, size: int) -> None:
    Path(name).write_bytes(b"x" * size)


def test_a_device_among_the_files_is_refused(owner: Owner, written: Written, tmp_path: Path):
    # None can be made inside: this one comes with a layer.
    os.mknod(tmp_path / "root" / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    owner.send(save(9, 1, source=BASE, path=bytes(tmp_path / "target")))
    event = owner.event()
    assert (event.kind, event.error, event.detail) == (SAVED, errno.EPERM, "copy a device")


@pytest.mark.parametrize(
    ("sandbox", "layer", "path", "error"),
    [
        (77, 0, b"/tmp", errno.ESRCH),
        (1, BASE, b"", errno.EEXIST),
        (1, 1024, b"", errno.ENOSPC),
        (1, 0, b"/nonexistent", errno.ENOENT),
    ],
    ids=["no-such-sandbox", "number-is-taken", "number-too-large", "no-such-directory"],
)
def test_a_snapshot_that_cannot_be_is_answered_and_leaves_nothing(
    owner: Owner, written: Written, sandbox: int, layer: int, path: bytes, error: int
):
    before = owner.descriptors()
    owner.send(save(9, sandbox, layer=layer, path=path))
    event = owner.event()
    assert (event.kind, event.tag, event.error) == (SAVED, 9, error)
    owner.quiet()
    assert owner.descriptors() == before
    # Neither does it cost the layer that has the number.
    with owner.boot(2, [BASE]):
        owner.send(order.destroy(2))
        assert owner.event()[:2] == (GONE, 2)


def fill(written: Written) -> None:
    def write_many() -> None:
        for number in range(350):
            write_one(str(number), 40_000)

    trespass(written.pid, write_many)


def save_killed(owner: Owner) -> None:
    """Kill the copier of a snapshot. On a busy machine one may have ended before it is found; then of the next."""
    known = set(owner.children())
    for layer in range(5, 25):
        owner.send(save(9, 1, layer=layer))
        copiers: set[int] = set()
        while not copiers and not select.select([owner.control], [], [], 0)[0]:
            copiers = set(owner.children()) - known
        for copier in copiers:
            with suppress(ProcessLookupError):
                os.kill(copier, signal.SIGKILL)
        event = owner.event()
        assert (event.kind, event.tag) == (SAVED, 9)
        if event.error:
            assert event.error == errno.ECANCELED
            return
    pytest.fail("no copier lived long enough to be killed")


def test_an_abandoned_snapshot_is_answered_and_the_sandbox_goes_on(owner: Owner, written: Written):
    fill(written)
    owner.send(save(9, 1, layer=5))
    owner.send(struct.pack("=II", ABANDON, 9))
    event = owner.event()
    assert (event.kind, event.tag, event.error) == (SAVED, 9, errno.ECANCELED)
    assert written.state() == "S"
    owner.send(save(10, 1, layer=5))
    assert owner.event()[:3] == (SAVED, 10, 0)


def test_a_killed_copier_is_told_and_what_it_froze_is_thawed(owner: Owner, written: Written):
    fill(written)
    save_killed(owner)
    assert written.state() == "S"


@pytest.mark.parametrize("killed", [False, True], ids=["to-its-end", "killed"])
def test_without_cgroups_a_snapshot_stops_and_continues_by_signals(spawner: Path, tmp_path: Path, killed: bool):  # noqa: F811
    owner = Owner.start(spawner, cgroup="none")
    owner.event()
    owner.send(order.layer(BASE, bytes(tmp_path)))
    owner.event()
    with owner.boot(1, [BASE]):
        written = Written(owner)
        fill(written)
        if killed:
            save_killed(owner)
        else:
            owner.send(save(9, 1, layer=5))
            event = owner.event()
            assert (event.kind, event.error) == (SAVED, 0)
        assert written.state() in "SR"
    assert owner.event()[:2] == (GONE, 1)
    assert owner.end() == 0


def test_a_sandbox_can_be_destroyed_while_it_is_copied(owner: Owner):
    with owner.boot(1, [BASE]):
        fill(Written(owner))
        owner.send(save(9, 1, layer=5))
        owner.send(order.destroy(1))
        seen = {owner.event()[:2] for _ in range(2)}
        assert seen == {(SAVED, 9), (GONE, 1)}
    assert owner.children() == []


def test_its_end_is_also_the_end_of_a_copier_and_of_what_is_frozen(spawner: Path, tmp_path: Path):  # noqa: F811
    owner = Owner.start(spawner)
    owner.event()
    owner.send(order.layer(BASE, bytes(tmp_path)))
    owner.event()
    with owner.boot(1, [BASE]):
        fill(Written(owner))
        owner.send(save(9, 1, layer=5))
        children = owner.children()
        assert owner.end() == 0
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


def manifest(owner: Owner, tag: int) -> list[str]:
    fd = os.memfd_create("manifest")
    try:
        owner.send(struct.pack("=II", INSPECT, tag), [fd])
        event = owner.event()
        assert (event.kind, event.tag, event.error) == (INSPECTED, tag, 0), event
        return os.pread(fd, 1 << 20, 0).decode().splitlines()
    finally:
        os.close(fd)


def test_two_fresh_sandboxes_have_one_manifest_and_a_written_file_is_seen(owner: Owner, written: Written):
    with owner.boot(2, [BASE]):
        (_, *one), (head, *two) = manifest(owner, 1), manifest(owner, 2)
        first_id = head.split()[3]
        assert [line.replace(str(written.first_id), "0") for line in one] == [
            line.replace(first_id, "0") for line in two
        ]
        assert "namespace net its own" in one
        assert "children 0" in one
        assert "ipc shm 0 sem 0 msg 0" in one
        trespass(written.pid, lambda: write_one("planted", 0))
        assert "written planted -1" in manifest(owner, 1)
        owner.send(order.destroy(2))
        assert owner.event()[:2] == (GONE, 2)


def test_an_inspection_without_a_sandbox_or_a_file_is_answered(owner: Owner):
    for tag in (0, 5):
        owner.send(struct.pack("=II", INSPECT, tag))
        event = owner.event()
        assert (event.kind, event.tag, event.error) == (INSPECTED, tag, errno.ESRCH)
