"""What services of dead owners left in the directory for temporary files, and what there is nobody's to delete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.driver.owner import owner_mark
from dutyfree.substrates.container import podman_service as service

DEAD = "boot.namespace.{pid}.1"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def dead() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def left(place: Path, pid: int, mark: str | None) -> Path:
    home = place / f"dutyfree-podman-{pid}-0123"
    (home / "run" / "runc").mkdir(parents=True)
    (home / "log").write_text("its last words")
    if mark is not None:
        (place / f"{home.name}.owner").write_text(mark)
    return home


def test_what_a_dead_owner_left_is_deleted_with_its_mark(place: Path):
    pid = dead()
    parts = owner_mark().split(".")
    left(place, pid, ".".join([*parts[:2], str(pid), "1"]))
    service._sweep()
    assert list(place.iterdir()) == []


def test_what_was_put_back_after_the_mark_was_deleted_is_found_by_its_name(place: Path):
    left(place, dead(), None)
    service._sweep()
    assert list(place.iterdir()) == []


def test_a_mark_whose_directory_is_gone_or_was_never_made_goes_too(place: Path):
    parts = owner_mark().split(".")
    (place / "dutyfree-podman-77-0123.owner").write_text(".".join([*parts[:2], str(dead()), "1"]))
    service._sweep()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("marked", [True, False])
def test_what_a_live_owner_has_stays(place: Path, marked: bool):
    left(place, os.getpid(), owner_mark() if marked else None)
    before = sorted(place.rglob("*"))
    service._sweep()
    assert sorted(place.rglob("*")) == before


def test_another_machines_mark_is_not_judged_and_a_link_is_not_followed(place: Path):
    left(place, dead(), DEAD.format(pid=dead()))
    (place / "precious").mkdir()
    (place / "precious" / "file").write_text("kept")
    (place / f"dutyfree-podman-{dead()}-4567").symlink_to(place / "precious")
    before = sorted(place.rglob("*"))
    service._sweep()
    assert sorted(place.rglob("*")) == before
