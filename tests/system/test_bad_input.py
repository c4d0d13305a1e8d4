"""Bad input of every kind: an exit code that is not 0, one clear message, never a traceback."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree
from dutyfree.cli.main import main
from dutyfree.core.errors import DutyfreeError, Misuse

COMMAND = [sys.executable, "-m", "dutyfree"]
HOST = ("run", "-s", "host")
MEASURE = ("measure", "-s", "noop", "--tier", "T0")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Files and directories that are not what they should be; the work directory of the test."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no directory")
    (tmp_path / "not.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "nothing.json").write_text("[]")
    (tmp_path / "prose.json").write_text('{"trajectory": "once upon a time"}')
    for name, manifest in (
        ("garbage", b"\x00\xff\xfe"),
        ("number", b"17"),
        ("hollow", b'{"host": {"id": "x"}}'),
        ("wrong", b'{"host": [], "protocol": {}, "subjects": {}, "workloads": {}}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_bytes(manifest)
        (tmp_path / name / "records.jsonl").write_bytes(b"\x00\n{}\n[]\nnull\n")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").mkdir()
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "manifest.json").write_text(
        '{"host": {"id": "x"}, "protocol": {}, "subjects": {}, "workloads": {}}'
    )
    (tmp_path / "packed" / "records.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path / "home"))
    return tmp_path


CLI = {
    "nothing at all": (),
    "an unknown subcommand": ("frobnicate",),
    "an option in place of a subcommand": ("--frobnicate",),
    "an unknown option": ("doctor", "--yaml"),
    "run: no command": ("run",),
    "run: an unknown option": ("run", "--colour", "red", "--", "true"),
    "run: an unknown substrate": ("run", "-s", "hots", "--", "true"),
    "run: an empty substrate": ("run", "-s", "", "--", "true"),
    "run: an unknown wrapper": ("run", "-s", "hot:host", "--", "true"),
    "run: a wrapper over nothing": ("run", "-s", "warm:", "--", "true"),
    "run: a module that is not there": ("run", "-s", "no.such:driver", "--", "true"),
    "run: a module that holds no driver": ("run", "-s", "os.path:join", "--", "true"),
    "run: an unknown option of a substrate": ("run", "-s", "host?colour=red", "--", "true"),
    "run: options without values": ("run", "-s", "host?what", "--", "true"),
    "run: a service that is not there": ("run", "-s", "http://127.0.0.1:1", "--", "true"),
    "run: an unknown image": (*HOST, "--image", "nope", "--", "true"),
    "run: an image's name that is no name": ("run", "--image", "../..", "--", "true"),
    "run: an image that is a file": ("run", "--image", "/etc/passwd", "--", "true"),
    "run: a size that is none": (*HOST, "--memory", "lots", "--", "true"),
    "run: a negative size": ("run", "--memory", "-1", "--", "true"),
    "run: a limit that is not offered": (*HOST, "--memory", "1G", "--", "true"),
    "run: no processes": ("run", "--pids", "0", "--", "true"),
    "run: negative processors": ("run", "--cpus", "-1", "--", "true"),
    "run: endless processors": ("run", "--cpus", "inf", "--", "true"),
    "run: a timeout that is no number": (*HOST, "--timeout", "soon", "--", "true"),
    "run: a negative timeout": (*HOST, "--timeout", "-1", "--", "true"),
    "run: a timeout of NaN": (*HOST, "--timeout", "nan", "--", "true"),
    "run: a variable without a value": (*HOST, "--env", "A", "--", "true"),
    "run: a variable without a name": (*HOST, "--env", "=1", "--", "true"),
    "run: a relative directory": (*HOST, "--cwd", "here", "--", "true"),
    "run: a directory that is not there": (*HOST, "--cwd", "/no/such", "--", "true"),
    "run: an unknown network": (*HOST, "--network", "wifi", "--", "true"),
    "run: a command with a zero byte": (*HOST, "--", "a\0b"),
    "measure: no place": ("measure",),
    "measure: an unknown substrate": ("measure", "-s", "nope", "-o", "out"),
    "measure: the same substrate twice": (*MEASURE, "-s", "noop", "-o", "out"),
    "measure: an unknown tier": ("measure", "-s", "noop", "--tier", "T9", "-o", "out"),
    "measure: no tier": ("measure", "-s", "noop", "--tier", ",", "-o", "out"),
    "measure: negative trials": (*MEASURE, "--trials", "-1", "-o", "out"),
    "measure: steps that are words": (*MEASURE, "--steps", "few", "-o", "out"),
    "measure: negative steps": (*MEASURE, "--steps", "-3", "-o", "out"),
    "measure: nobody in parallel": (*MEASURE, "--parallel", "0", "-o", "out"),
    "measure: trials for a stranger": (*MEASURE, "--trials-for", "docker=1", "-o", "out"),
    "measure: trials for nobody": (*MEASURE, "--trials-for", "=1", "-o", "out"),
    "measure: a negative deadline": (*MEASURE, "--deadline", "-1", "-o", "out"),
    "measure: a deadline of NaN": (*MEASURE, "--deadline", "nan", "-o", "out"),
    "measure: negative processors": (*MEASURE, "--cpus", "-2", "-o", "out"),
    "measure: no image": (*MEASURE, "--image", "", "-o", "out"),
    "measure: into a file": (*MEASURE, "--trials", "1", "-o", "file"),
    "measure: below a file": (*MEASURE, "--trials", "1", "-o", "file/out"),
    "measure: into a loop of links": (*MEASURE, "--trials", "1", "-o", "loop"),
    "measure: into garbage": (*MEASURE, "--trials", "1", "-o", "garbage"),
    "measure: into a hollow run": (*MEASURE, "--trials", "1", "-o", "hollow"),
    "measure: a trace that is not there": ("measure", "-s", "noop", "--trace", "no.json", "-o", "out"),
    "measure: a trace that is a directory": ("measure", "-s", "noop", "--trace", "empty", "-o", "out"),
    "measure: a trace that is no JSON": ("measure", "-s", "noop", "--trace", "not.json", "-o", "out"),
    "measure: a trace of numbers": ("measure", "-s", "noop", "--trace", "list.json", "-o", "out"),
    "measure: an empty trace": ("measure", "-s", "noop", "--trace", "nothing.json", "-o", "out"),
    "measure: a trace of prose": ("measure", "-s", "noop", "--trace", "prose.json", "-o", "out"),
    "measure: a repository without its patch": ("measure", "-s", "noop", "--repo", "https://x.invalid/y", "-o", "out"),
    "report: no directory": ("report",),
    "report: a directory that is not there": ("report", "none"),
    "report: a file": ("report", "file"),
    "report: an empty directory": ("report", "empty"),
    "report: garbage": ("report", "garbage"),
    "report: a number": ("report", "number"),
    "report: a hollow run": ("report", "hollow"),
    "report: wrong types": ("report", "wrong"),
    "report: a manifest that is a directory": ("report", "torn"),
    "report: records that cannot be unpacked": ("report", "packed"),
    "report: a loop of links": ("report", "loop"),
    "project: a directory that is not there": ("project", "none"),
    "project: garbage": ("project", "garbage"),
    "project: lengths that are words": ("project", "empty", "--lengths", "long"),
    "project: no trajectories": ("project", "empty", "--trajectories", "0"),
    "project: endless trajectories": ("project", "empty", "--trajectories", "inf"),
    "project: a price that is no number": ("project", "empty", "--price", "dear"),
    "project: a price of NaN": ("project", "empty", "--price", "nan"),
    "image: no verb": ("image",),
    "image: an unknown verb": ("image", "paint"),
    "image: import of nothing": ("image", "import", "none", "--name", "x"),
    "image: import of a text": ("image", "import", "file", "--name", "x"),
    "image: a bad name": ("image", "import", "empty", "--name", "../x"),
    "image: an engine that knows no such image": ("image", "remove", "none"),
    "image: a reference that is none": ("image", "pull", "::::"),
    "stage: no verb": ("stage",),
    "stage: a file that is not there": ("stage", "build", "none.toml"),
    "stage: a file that is no declaration": ("stage", "build", "not.json"),
    "probe: an unknown substrate": ("probe", "-s", "nope"),
    "probe: an unknown number": ("probe", "-s", "host", "--only", "99999"),
    "probe: numbers that are words": ("probe", "-s", "host", "--only", "all"),
    "simulate: no nodes": ("simulate", "--nodes", "0"),
    "simulate: a scenario that is not there": ("simulate", "--scenario", "none"),
    "simulate: a scenario that is no JSON": ("simulate", "--scenario", "not.json"),
    "simulate: a scenario of the wrong shape": ("simulate", "--scenario", "list.json"),
    "simulate: an unknown policy": ("simulate", "--policy", "luck"),
    "simulate: records that are not there": ("simulate", "--records", "none"),
}  # fmt: skip


@pytest.mark.parametrize("words", CLI.values(), ids=CLI.keys())
def test_the_command_line_says_what_is_wrong_in_one_message(place, capfd, words):
    try:
        code = main(words)
    except SystemExit as exit_:  # argparse
        code = exit_.code
    said = capfd.readouterr()
    assert code not in (0, None)
    assert "Traceback" not in said.out + said.err
    told = [line for line in said.err.splitlines() if line.startswith("dutyfree")]
    assert len(told) == 1, said.err
    assert len(told[0]) > len("dutyfree: ") + 10


async def _use(**wrong):
    async with dutyfree.connect("host") as substrate, substrate.create() as box:
        await box.run("true", **wrong)


async def _connect(name, **options):
    async with dutyfree.connect(name, **options):
        pass


API = {
    "a name that is none": lambda: _connect(17),
    "an empty name": lambda: _connect(""),
    "a name with a zero byte": lambda: _connect("a\0b"),
    "a pool of words": lambda: _connect("warm:host", sandboxes="many"),
    "a pool of none": lambda: _connect("warm:host", sandboxes=0),
    "a negative pool": lambda: _connect("warm:host", sandboxes=-4),
    "half a sandbox": lambda: _connect("warm:host", sandboxes=0.5),
    "a pool that is a list": lambda: _connect("warm:host", sandboxes=[4]),
    "an option of nothing": lambda: _connect("warm:host", idle=None),
    "an unknown option": lambda: _connect("warm:host", colour=4),
    "a wait that is negative": lambda: _connect("warm:host", wait_s=-1),
    "a wait that is not a number": lambda: _connect("warm:host", wait_s="nan"),
    "stages that are not there": lambda: _connect("warm:host", stages=Path("none.toml")),
    "a stock in words": lambda: _connect("native", stock="many"),
    "a negative timeout": lambda: _use(timeout_s=-1),
    "a timeout in words": lambda: _use(timeout_s="soon"),
    "a relative directory": lambda: _use(cwd="here"),
    "input that is a number": lambda: _use(stdin=4),
    "variables that are a list": lambda: _use(env=["A=1"]),
    "a negative limit of output": lambda: _use(output_limit_bytes=-1),
}  # fmt: skip


@pytest.mark.parametrize("call", API.values(), ids=API.keys())
def test_the_library_raises_an_error_of_its_own(place, call):
    with pytest.raises(DutyfreeError) as caught:
        asyncio.run(call())
    assert len(str(caught.value)) > 10


def in_shell(script: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The command line as a process, where its streams or variables are what is wrong; `$D` is it."""
    command = f'D="{" ".join(COMMAND)}"; {script}'
    env = {**os.environ, **variables}
    return subprocess.run(["bash", "-c", command], env=env, capture_output=True, check=False)


STREAMS = {
    "the disk is full": "$D doctor --json >/dev/full",
    "the disk is full for help": "$D --help >/dev/full",
    "the disk is full for a command's output": "$D run -s host -- echo hi >/dev/full",
    "output is closed": "$D doctor --json >&-",
    "output is closed for a command": "$D run -s host -- echo hi >&-",
    "a substrate that is not UTF-8": "$D run -s $'\\xff\\xfe' -- true",
    "a file that is not UTF-8": "$D report $'\\xff\\xfe'",
    "a directory that is not UTF-8": "$D run -s host --cwd $'/\\xff' -- true",
}


@pytest.mark.parametrize("script", STREAMS.values(), ids=STREAMS.keys())
def test_a_stream_or_an_argument_that_cannot_be_used_is_told_once(place, script):
    out = in_shell(script)
    assert out.returncode != 0
    assert b"Traceback" not in out.stderr
    assert out.stderr.count(b"\n") == 1
    assert out.stderr.startswith(b"dutyfree: ")


def test_a_relative_home_is_refused(place):
    out = in_shell("$D image list", DUTYFREE_HOME="here")
    assert out.returncode == 2
    assert out.stderr == b"dutyfree: DUTYFREE_HOME: must be an absolute path, not 'here'\n"


@pytest.mark.parametrize("script", ["$D doctor | true", "$D --help | true", "$D run -s host -- yes | head -n1"])
def test_a_reader_that_leaves_is_no_error(place, script):
    out = in_shell(script)
    assert out.stderr == b""


def test_nobody_reads_or_writes(place):
    out = in_shell("$D run -s host -- 'cat; echo hi' <&- 2>&-")
    assert (out.returncode, out.stdout) == (0, b"hi\n")


LOCALES = (
    {"LC_ALL": "C", "PYTHONUTF8": "0"},
    {"LC_ALL": "", "LANG": "de_DE.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "ascii"},
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("run") / "möglich"
    assert (
        main(
            (
                "measure",
                "-s",
                "host",
                "-s",
                "noop",
                "--tier",
                "T0",
                "--steps",
                "0,10",
                "--trials",
                "2",
                "-o",
                str(target),
            )
        )
        == 0
    )
    return target


@pytest.mark.parametrize("variables", LOCALES, ids=lambda v: " ".join(f"{k}={w}" for k, w in v.items()))
@pytest.mark.parametrize("words", ["--help", "measure --help", "run --help", "doctor", "project {0}", "report {0}"])
def test_every_locale_can_show_what_we_say(measured, words, variables):
    out = in_shell("$D " + words.format(measured), **variables)
    assert out.returncode == 0, out.stderr
    assert out.stderr == b""
    if words.startswith("report"):
        assert "µs" in (measured / "tables.md").read_text(encoding="utf-8")
        json.loads((measured / "summary.json").read_bytes())


def test_a_report_goes_where_it_is_told_and_is_as_wide_as_it_is_told(measured, tmp_path):
    out = in_shell(f"$D report {measured} -o {tmp_path}/here", COLUMNS="60")
    assert out.returncode == 0, out.stderr
    assert (tmp_path / "here" / "report.html").exists()
    table = out.stdout.decode().partition("The instrument")[0]
    assert max(len(line) for line in table.splitlines()) <= 60


def test_an_unknown_user_is_called_that(place):
    out = in_shell("$D run --user nosuch -- true", DUTYFREE_HOME="")
    assert out.returncode == 125
    assert b"there is no user 'nosuch'" in out.stderr


def test_what_cannot_be_executed_inside_is_told_without_our_name(place):
    out = in_shell("$D run -- nosuch word", DUTYFREE_HOME="")
    assert (out.returncode, out.stderr) == (127, b"nosuch: No such file or directory\n")


def test_options_may_be_numbers(place):
    async def work():
        async with (
            dutyfree.connect("warm:host", sandboxes=2, demand=False, wait_s=0.5) as pool,
            pool.create() as box,
        ):
            return (await box.run("echo hi")).stdout

    assert asyncio.run(work()) == b"hi\n"
    with pytest.raises(Misuse, match="sandboxes"):
        asyncio.run(_connect("warm:host", sandboxes=True))
