"""What dead owners left is swept at the next start; what living ones have is never touched."""

import asyncio
import os
from pathlib import Path

import pytest

import dutyfree

CONTROLLERS = ("memory", "pids", "cpu")


def start_time(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def own_places():
    """Where a spawner of ours would put its directories: below our own cgroup (v1), below the root (v2)."""
    places = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            place = Path(f"/sys/fs/cgroup/{name}{path}")
            if name in CONTROLLERS and place.is_dir():
                places.append(place)
    if not places and Path("/sys/fs/cgroup/cgroup.controllers").exists():
        places.append(Path("/sys/fs/cgroup"))
    return places


@pytest.fixture
def leave():
    """Makes directories as an owner of this name would have left them; removes what is left of them."""
    places = [place for place in own_places() if os.access(place, os.W_OK)]
    if not places:
        pytest.skip("no writable cgroup hierarchy here: sudo make test")
    made = []

    def make(name):
        for place in places:
            for path in (place / name, place / name / "0"):
                path.mkdir()
                made.append(path)
        return [place / name for place in places]

    yield make
    for path in reversed(made):
        if path.exists():
            path.rmdir()


def start_and_stop():
    async def main():
        async with dutyfree.connect("native"):
            pass

    asyncio.run(main())


def test_directories_of_a_dead_owner_are_swept(leave):
    # No process has this number (it is above pid_max), so nobody can be alive under it.
    left = leave("dutyfree-4194304-1")
    start_and_stop()
    assert [path for path in left if path.exists()] == []


def test_directories_of_a_number_that_now_means_somebody_else_are_swept(leave):
    left = leave(f"dutyfree-{os.getpid()}-1")
    start_and_stop()
    assert [path for path in left if path.exists()] == []


def test_directories_of_a_living_owner_are_kept(leave):
    left = leave(f"dutyfree-{os.getpid()}-{start_time(os.getpid())}")
    start_and_stop()
    assert [path for path in left if not path.exists()] == []


def test_directories_of_others_are_kept(leave):
    left = leave("dutyfree-notes")
    start_and_stop()
    assert [path for path in left if not path.exists()] == []


def test_two_owners_at_once_do_not_disturb_each_other():
    async def main():
        async with dutyfree.connect("native") as first, first.create() as box:
            async with dutyfree.connect("native") as second, second.create() as other:
                assert (await other.run(["echo", "two"])).stdout == b"two\n"
            assert (await box.run(["echo", "one"])).stdout == b"one\n"

    asyncio.run(main())
