"""`dutyfree image`, as people and programs use it."""

import argparse
import json
from pathlib import Path

import pytest

from dutyfree.cli import image
from dutyfree.core.errors import Misuse


@pytest.fixture
def dutyfree(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    parser = argparse.ArgumentParser()
    image.add_arguments(parser)
    return lambda *words: image.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "rootfs/bin").mkdir(parents=True)
    (tmp_path / "rootfs/bin/tool").write_bytes(b"x" * 2048)
    return tmp_path / "rootfs"


def test_an_empty_store_says_how_to_begin(dutyfree, capsys):
    assert dutyfree("list") == 0
    assert "dutyfree image build bench" in capsys.readouterr().out


def test_import_list_and_remove(dutyfree, rootfs: Path, capsys):
    assert dutyfree("import", rootfs, "--name", "mine") == 0
    assert capsys.readouterr().out.startswith("mine: 2.0 KiB, key ")
    dutyfree("list", "--json")
    listed = json.loads(capsys.readouterr().out)["images"]
    assert [(row["name"], row["kind"], row["size_bytes"]) for row in listed] == [("mine", "directory", 2048)]
    dutyfree("list")
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "mine"
    assert dutyfree("remove", "mine") == 0
    assert capsys.readouterr().out == "mine: removed\n"
    dutyfree("list", "--json")
    assert json.loads(capsys.readouterr().out)["images"] == []


def test_a_taken_name_is_refused_unless_forced_and_then_frees_the_old_image(dutyfree, rootfs: Path, capsys):
    dutyfree("import", rootfs, "--name", "mine")
    (rootfs / "bin/tool").write_bytes(b"changed")
    with pytest.raises(Misuse, match="taken"):
        dutyfree("import", rootfs, "--name", "mine")
    dutyfree("import", rootfs, "--name", "mine", "--force")
    capsys.readouterr()
    dutyfree("list", "--json")
    assert [row["size_bytes"] for row in json.loads(capsys.readouterr().out)["images"]] == [7]


@pytest.mark.parametrize(("path", "name"), [("/", "mine"), ("/absent", "mine"), ("/usr", "host"), ("/usr", "No Name")])
def test_what_cannot_be_imported_is_misuse(dutyfree, path: str, name: str, tmp_path: Path):
    with pytest.raises(Misuse):
        dutyfree("import", path, "--name", name)
    assert not (tmp_path / "home").exists()


def test_a_size_cap_is_kept(dutyfree, rootfs: Path):
    with pytest.raises(Misuse, match="cap of 1024 bytes"):
        dutyfree("import", rootfs, "--name", "mine", "--max-size", "1K")


@pytest.mark.parametrize("size", ["", "0", "-1", "1X", "G", "1.5G"])
def test_a_size_that_is_none_is_refused(dutyfree, rootfs: Path, size: str, capsys):
    with pytest.raises(SystemExit):
        dutyfree("import", rootfs, "--name", "mine", f"--max-size={size}")
    assert "is no size" in capsys.readouterr().err


def test_control_characters_from_elsewhere_do_not_reach_the_terminal():
    assert image.printable("a\x1b[31mb\u202ec") == "a?[31mb?c"


def test_sizes_are_readable():
    assert [image.human(size) for size in (0, 1023, 1024, 3 << 30)] == ["0 B", "1023 B", "1.0 KiB", "3.0 GiB"]
