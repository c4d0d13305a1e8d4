"""`dutyfree run` with one's own files, stages and as JSON; `dutyfree demo`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.cli import luggage, rollout
from dutyfree.cli.main import main
from dutyfree.core.errors import Misuse
from dutyfree.substrates.registry import find

native = pytest.mark.skipif(not find("native")[0].probe().available, reason="native cannot run here: dutyfree doctor")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task").mkdir()
    (tmp_path / "task/answer.txt").write_text("42\n")
    (tmp_path / "task/tool").write_text("#!/bin/sh\necho made by a tool\n")
    (tmp_path / "task/tool").chmod(0o755)
    return tmp_path


@native
def test_a_directory_goes_in_and_what_the_command_made_of_it_comes_out(place, capfd):
    words = ["mkdir out; ./tool > out/said; cp answer.txt out; pwd"]
    assert main(["run", "--upload", "task", "--download", "out", "--", *words]) == 0
    assert capfd.readouterr().out == "/work\n"
    assert (place / "out/said").read_text() == "made by a tool\n"
    assert (place / "out/answer.txt").read_text() == "42\n"


@native
def test_places_can_be_said_and_a_failed_command_still_gives_its_files(place, capfd):
    code = main(
        ["run", "--upload", "task:/in/here", "--upload", "task/answer.txt", "--download", "/in/here/tool:mine",
         "--cwd", "/in", "--", "ls; ls /work; exit 9"]
    )  # fmt: skip
    assert code == 9
    assert capfd.readouterr().out == "here\nanswer.txt\n"
    assert (place / "mine").stat().st_mode & 0o777 == 0o755


@native
def test_what_is_not_there_to_come_out_is_told(place, capfd):
    assert main(["run", "--download", "/etc/none", "--", "true"]) == 125
    assert "there is no /etc/none in the sandbox" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("uploads", "downloads", "says"),
    [
        (["none"], [], "there is nothing at"),
        (["task", "task"], [], "several go to /work"),
        ([], ["/etc/task"], "is there already"),
    ],
)
def test_luggage_that_cannot_be_carried_is_refused_before_anything_starts(place, uploads, downloads, says):
    with pytest.raises(Misuse, match=says):
        luggage.parse(uploads, downloads)


def test_an_upload_does_not_land_on_the_machine_itself_unless_told(place, capfd):
    assert main(["run", "-s", "host", "--upload", "task", "--", "true"]) == 125
    assert "say where" in capfd.readouterr().err
    assert not Path("/work/answer.txt").exists()
    assert main(["run", "-s", "host", "--upload", f"task:{place}/copy", "--", "cat answer.txt"]) == 0
    assert capfd.readouterr().out == "42\n"


def test_json_holds_the_outcome(capfd):
    assert main(["run", "-s", "host", "--json", "--", "echo hi; echo no >&2; exit 3"]) == 3
    found = json.loads(capfd.readouterr().out)
    assert (found["ending"], found["exit_code"], found["stdout"], found["stderr"]) == ("exit", 3, "hi\n", "no\n")


@native
@pytest.mark.skipif(os.geteuid() != 0, reason="stages are kept as snapshots, which need root: sudo make test")
def test_stages_are_built_once_and_options_go_before_the_file(place, capfd, monkeypatch):
    monkeypatch.setenv("DUTYFREE_HOME", str(place / "home"))
    (place / "start.toml").write_text('env = {A = "1", B = "1"}\n[[stage]]\ncommands = ["cat /proc/uptime > /built"]\n')
    said = []
    for _ in range(2):
        assert main(["run", "--stages", "start.toml", "--env", "B=2", "--", "cat /built; echo $A $B"]) == 0
        said.append(capfd.readouterr().out)
    assert said[0] == said[1]
    assert said[0].endswith("1 2\n")


@native
def test_the_demo_prints_its_source_runs_it_and_gives_rewards(capfd):
    assert main(["demo"]) == 0
    source = Path(rollout.__file__).read_text()
    assert len(source.splitlines()) <= 35
    out = capfd.readouterr().out
    assert out.startswith(source)
    assert re.findall(r"^reward: (.*)$", out, re.MULTILINE) == ["0.0", "1.0"]


@native
def test_the_demos_source_is_a_program(tmp_path):
    source = subprocess.run(
        [sys.executable, "-m", "dutyfree", "demo", "--source"], capture_output=True, check=True
    ).stdout
    (tmp_path / "rollout.py").write_bytes(source)
    done = subprocess.run([sys.executable, tmp_path / "rollout.py"], capture_output=True, check=True, text=True)
    assert done.stdout.endswith("reward: 1.0\n")
