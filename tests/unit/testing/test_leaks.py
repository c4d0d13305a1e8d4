"""The leak check must be able to fail: one leak of each kind, seen and then gone."""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dutyfree.testing.leaks import TOKEN_VARIABLE, holdings, leaked


@contextmanager
def a_descriptor(_: Path) -> Iterator[None]:
    fd = os.open("/dev/null", os.O_RDONLY)
    yield
    os.close(fd)


@contextmanager
def a_directory(_: Path) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix=f"dutyfree-test-{os.getpid()}-"):
        yield


@contextmanager
def a_process(_: Path) -> Iterator[None]:
    child = subprocess.Popen(["sleep", "60"])
    yield
    child.kill()
    child.wait()


@contextmanager
def a_thread(_: Path) -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@contextmanager
def a_mount(place: Path) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(f"dutyfree-test-{os.getpid()}-1".encode(), os.fsencode(place), b"tmpfs", 0, b"size=4k") != 0:
        pytest.skip("mounting needs root: sudo make test")
    yield
    assert libc.umount(os.fsencode(place)) == 0


@contextmanager
def a_cgroup(_: Path) -> Iterator[None]:
    roots = [root for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")) if os.access(root, os.W_OK)]
    if not roots:
        pytest.skip("making a cgroup needs root: sudo make test")
    path = roots[0] / f"dutyfree-test-{os.getpid()}-1"
    path.mkdir()
    yield
    path.rmdir()


KINDS = {
    "descriptor": a_descriptor,
    "directory": a_directory,
    "process": a_process,
    "thread": a_thread,
    "mount": a_mount,
    "cgroup": a_cgroup,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_leak_is_seen_while_it_lasts(kind: str, tmp_path: Path):
    hold: Callable[[Path], object] = KINDS[kind]
    before = holdings()
    with hold(tmp_path):
        assert kind in [one.kind for one in leaked(before)]
    assert leaked(before) == []


def test_with_patience_what_ends_by_itself_is_no_leak_and_what_stays_is_one():
    before = holdings()
    soon, over = threading.Event(), threading.Event()
    brief = threading.Thread(target=soon.wait)
    lasting = threading.Thread(target=over.wait)
    brief.start()
    assert leaked(before)
    threading.Timer(0.2, soon.set).start()
    assert leaked(before, 30) == []
    lasting.start()
    assert [one.kind for one in leaked(before, 0.05)] == ["thread"]
    over.set()
    brief.join()
    lasting.join()


def test_connections_can_be_passed_over_and_nothing_else(tmp_path: Path):
    before = holdings()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert len(leaked(before)) == 2
        assert leaked(before, sockets=False) == []
        with a_descriptor(tmp_path):
            assert [one.kind for one in leaked(before, sockets=False)] == ["descriptor"]


def test_an_orphan_that_carries_our_token_is_seen(tmp_path: Path):
    before = holdings()
    program = tmp_path / "dutyfree-orphan"
    program.symlink_to("/bin/sleep")
    start = f"import subprocess; print(subprocess.Popen(['{program}', '60']).pid)"
    env = {**os.environ, TOKEN_VARIABLE: os.environ[TOKEN_VARIABLE]}
    report = tmp_path / "pid"
    with report.open("wb") as out:
        subprocess.run([sys.executable, "-c", start], stdout=out, check=True, env=env)
    pidfd = os.pidfd_open(int(report.read_text()))
    try:
        assert [one.kind for one in leaked(before)] == ["descriptor", "process"]
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [])
        os.close(pidfd)


def test_what_comes_and_goes_while_it_looks_does_not_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    groups = [Path(root) for root in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup") if os.access(root, os.W_OK)][:1]
    end = threading.Event()

    def churn() -> None:
        while not end.is_set():
            for place in (tmp_path, *groups):
                (place / f"dutyfree-test-{os.getppid()}-1").mkdir()
                (place / f"dutyfree-test-{os.getppid()}-1/below").mkdir()
                (place / f"dutyfree-test-{os.getppid()}-1/below").rmdir()
                (place / f"dutyfree-test-{os.getppid()}-1").rmdir()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        found = [holdings() for _ in range(20)]
    finally:
        end.set()
        thread.join()
    assert not [one for held in found for one in held if f"-{os.getppid()}-" in one.what]


def test_what_belongs_to_another_live_process_is_not_ours():
    other = os.getppid()
    with tempfile.TemporaryDirectory(prefix=f"dutyfree-test-{other}-") as directory:
        assert directory not in [one.what for one in holdings()]
