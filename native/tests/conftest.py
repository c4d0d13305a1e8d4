"""Builds of the agent and a running peer of each; after every test, nothing the agent started may be left."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from peer import Peer

NATIVE = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36


def build(folder: str) -> Path:
    target = f"{folder}/dutyfree-agent"
    flags = ["SANITIZE=1"] if folder == "build-sanitize" else []
    subprocess.run(
        ["flock", str(NATIVE), "make", "-s", "-C", str(NATIVE), *flags, target], check=True, stdout=subprocess.DEVNULL
    )
    return NATIVE / target


@pytest.fixture(scope="session")
def inherits_orphans() -> None:
    """Processes that outlive their agent become children of the tests, where they are seen."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


@pytest.fixture(
    scope="session",
    params=["build", pytest.param("build-sanitize", marks=pytest.mark.slow("the C programs under sanitizers"))],
)
def program(request: pytest.FixtureRequest) -> Path:
    return build(request.param)


@pytest.fixture(scope="session")
def sanitized_program() -> Path:
    return build("build-sanitize")


def assert_no_children() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        assert pid, "a process has outlived its agent: " + Path("/proc/thread-self/children").read_text()


@pytest.fixture
def start(inherits_orphans: None) -> Iterator[Callable[..., Peer]]:
    """Starts agents, ends them with the test, and looks for what they left."""
    peers: list[Peer] = []

    def start_one(program: Path, *, through: tuple[str, ...] = ()) -> Peer:
        peers.append(Peer.start(program, through=through))
        return peers[-1]

    yield start_one
    statuses = [peer.hang_up() for peer in peers]
    assert statuses == [0] * len(peers)
    assert_no_children()


@pytest.fixture
def peer(program: Path, start: Callable[..., Peer]) -> Peer:
    return start(program)


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A directory in memory, where there is one: for trees of many files or levels."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)


@pytest.fixture
def first_process(program: Path, start: Callable[..., Peer]) -> Peer:
    """An agent that is PID 1 of a pid namespace."""
    if os.geteuid() != 0:
        pytest.skip("a pid namespace needs root: sudo make test")
    return start(program, through=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
