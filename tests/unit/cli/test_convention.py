"""What people expect of a command line: did-you-mean, a config file, variables, completion, a log."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.cli.main import COMMANDS, main
from dutyfree.core.errors import Misuse
from dutyfree.core.settings import SETTINGS, default_substrate, environment, file_place

DUTYFREE = [sys.executable, "-m", "dutyfree"]


@pytest.fixture
def config(tmp_path, monkeypatch):
    place = tmp_path / "config.toml"
    monkeypatch.setenv("DUTYFREE_CONFIG", str(place))
    monkeypatch.delenv("DUTYFREE_SUBSTRATE", raising=False)
    return place.write_text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["rn"], 2, "did you mean 'run'?"),
        (["run", "--meory", "1G", "--", "true"], 125, "did you mean '--memory'?"),
        (["run", "echo", "-x"], 125, "behind --"),
        (["doctor", "--jsn"], 2, "did you mean '--json'?"),
        (["image", "pull", "--fore", "x"], 2, "did you mean '--force'?"),
        (["image", "remov", "x"], 2, "remove"),
    ],
)
def test_the_option_or_command_that_was_meant_is_named(capfd, words, code, says):
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capfd.readouterr().err
    assert ended.value.code == code
    assert says in said
    assert said.count("\n") == 1


def test_the_version_has_a_short_option(capfd):
    with pytest.raises(SystemExit):
        main(["-V"])
    assert capfd.readouterr().out.startswith("dutyfree 0.")


def test_an_option_wins_over_the_variable_that_wins_over_the_file_that_wins_over_the_default(config, monkeypatch):
    config("")
    assert default_substrate() == "native"
    config('substrate = "noop"')
    assert default_substrate() == "noop"
    monkeypatch.setenv("DUTYFREE_SUBSTRATE", "host")
    assert default_substrate() == "host"
    assert main(["run", "--", "true"]) == 0
    assert main(["run", "-s", "nope", "--", "true"]) == 125


def test_settings_of_the_file_stand_for_variables(config, monkeypatch, tmp_path):
    monkeypatch.delenv("DUTYFREE_HOME", raising=False)
    config(f'home = "{tmp_path}/store"\nstore_bytes = 1000')
    assert environment()["DUTYFREE_HOME"] == f"{tmp_path}/store"
    assert environment()["DUTYFREE_STORE_BYTES"] == "1000"


def test_a_table_of_the_file_has_defaults_of_a_commands_options(config, capfd):
    config('[run]\nsubstrate = "host"\nenv = ["A=1", "B=1"]\ntimeout = 9\n')
    assert main(["run", "--", "echo $A$B"]) == 0
    assert main(["run", "--env", "B=2", "--", "echo $A$B"]) == 0
    assert capfd.readouterr().out == "11\n2\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("substrat = 'host'", "did you mean 'substrate'?"),
        ("[rnu]\nmemory = '1G'", "did you mean 'run'?"),
        ("[run]\nmeory = '1G'", "did you mean 'memory'?"),
        ("[run]\ntime = 'yes'", "must be true or false"),
        ("[run]\ntimeout = 'soon'", "could not convert"),
        ("[run]\nnetwork = 'wifi'", "must be one of"),
        ("[run", "is not TOML"),
        ("home = []", "must be text or a number"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(config, capfd, text, says):
    config(text)
    assert main(["run", "-s", "host", "--", "true"]) == 125
    said = capfd.readouterr().err
    assert says in said
    assert "config.toml" in said
    assert said.count("\n") == 1


def test_a_file_that_was_named_must_be_there_and_an_empty_name_means_none(monkeypatch, tmp_path):
    monkeypatch.setenv("DUTYFREE_CONFIG", str(tmp_path / "none"))
    with pytest.raises(Misuse, match="there is no file"):
        default_substrate()
    assert file_place({"DUTYFREE_CONFIG": "", "HOME": "/home/x"}) is None
    assert str(file_place({"HOME": "/home/x"})) == "/home/x/.config/dutyfree/config.toml"
    assert str(file_place({"HOME": "/home/x", "XDG_CONFIG_HOME": "/c"})) == "/c/dutyfree/config.toml"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_the_shell_reads(tmp_path, shell):
    script = tmp_path / "script"
    script.write_bytes(subprocess.run([*DUTYFREE, "completion", shell], capture_output=True, check=True).stdout)
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}; enable: apt-get install -y {shell}")
    subprocess.run([shell, "-n", script], check=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [("dutyfree do", {"doctor"}), ("dutyfree run --dow", {"--download"}), ("dutyfree run --network ", {"none", "host"}),
     ("dutyfree demo -s nat", {"native"}), ("dutyfree ", set(COMMANDS))],
)  # fmt: skip
def test_bash_completes_commands_options_and_choices(tmp_path, words, offered):
    script = tmp_path / "script"
    script.write_bytes(subprocess.run([*DUTYFREE, "completion", "bash"], capture_output=True, check=True).stdout)
    typed = [word or "''" for word in words.split(" ")]
    ask = f"source {script}; COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; "
    ask += '_shtab_dutyfree dutyfree "${COMP_WORDS[COMP_CWORD]}" ""; printf "%s\\n" "${COMPREPLY[@]}"'
    found = subprocess.run(["bash", "-c", ask], capture_output=True, check=True, text=True).stdout.split()
    assert offered <= set(found)


def test_verbose_shows_the_librarys_log():
    program = (
        "import logging, sys; from dutyfree.cli import doctor, main\n"
        "doctor.run = lambda args: logging.getLogger('dutyfree.x').info('looked') or logging.getLogger('dutyfree').debug('closely') or 0\n"
        "sys.exit(main.main())"
    )
    said = {}
    for option in ("", "-v", "-vv"):
        words = ["doctor", *([option] if option else [])]
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, check=True, text=True)
        said[option] = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    assert said == {"": [], "-v": ["dutyfree.x: looked"], "-vv": ["dutyfree.x: looked", "dutyfree: closely"]}


def test_python_m_dutyfree_is_the_command_line():
    done = subprocess.run([*DUTYFREE, "--version"], capture_output=True, check=True, text=True)
    assert done.stdout.startswith("dutyfree 0.")


def test_every_setting_has_a_variable_and_a_meaning():
    assert all(one.variable == f"DUTYFREE_{one.key.upper()}" and one.meaning and one.default for one in SETTINGS)
    assert os.environ["DUTYFREE_CONFIG"] == ""


def test_what_programs_may_want_to_read_is_there_as_json(tmp_path):
    def said(*words):
        return json.loads(subprocess.run([*DUTYFREE, *words, "--json"], capture_output=True, check=True).stdout)

    run = str(tmp_path / "run")
    measured = said(
        "measure", "-s", "noop", "-s", "host", "--tier", "T0", "--steps", "0,10", "--trials", "2", "-o", run
    )
    assert measured == {"directory": run, "trials": 10, "there_before": 0, "failed": 0}
    found = said("report", run)
    assert json.loads(Path(found["summary"]).read_text())
    assert Path(found["html"]).exists()
    assert said("project", run)["tables"][0]["rows"]


def test_help_imports_no_command_no_driver_and_nothing_heavy():
    program = (
        "import sys; from dutyfree.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: print('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.partition("MODULES")[2].split())
    assert "dutyfree.cli.main" in loaded
    heavy = {"rich", "numpy", "shtab", "tomllib", "sqlite3", "dutyfree.warm", "dutyfree.image", "dutyfree.probe"}
    assert not loaded & (
        heavy
        | {f"dutyfree.cli.{name}" for name in COMMANDS}
        | {f"dutyfree.substrates.{name}" for name in ("native", "host")}
    )
