"""The command line as a person meets it: in processes of its own."""

import json
import os
import signal
import subprocess
import sys

import pytest

from dutyfree.cli import errors, main
from dutyfree.core.errors import DriverError, Misuse, SandboxLost, Saturated, Unavailable, Unsupported


def dutyfree(*words: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dutyfree", *words]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, env={**os.environ, **(env or {})})


def test_help_lists_only_the_commands_that_are_here():
    out = dutyfree("--help")
    assert out.returncode == 0
    for name in main.installed():
        assert name.encode() in out.stdout


def test_every_command_has_the_line_that_the_table_has():
    for name, line in main.installed().items():
        module = __import__(f"dutyfree.cli.{name}", fromlist=["HELP"])
        assert line == module.HELP


@pytest.mark.parametrize("name", list(main.installed()))
def test_every_command_explains_itself(name: str):
    out = dutyfree(name, "--help")
    assert out.returncode == 0
    assert b"usage: dutyfree " + name.encode() in out.stdout


def test_an_unknown_command_is_misuse():
    out = dutyfree("frobnicate")
    assert out.returncode == errors.MISUSE
    assert b"invalid choice" in out.stderr


def test_run_passes_bytes_and_the_exit_code():
    out = dutyfree("run", "-s", "host", "--", "cat; echo err >&2; exit 5", stdin=b"\x00\xff\x1b")
    assert (out.returncode, out.stdout, out.stderr) == (5, b"\x00\xff\x1b", b"err\n")


def test_run_executes_several_words_directly():
    out = dutyfree("run", "-s", "host", "--", "printf", "%s", "$HOME", "a b")
    assert (out.returncode, out.stdout) == (0, b"$HOMEa b")


def test_run_says_124_at_the_deadline():
    out = dutyfree("run", "-s", "host", "--timeout", "0.2", "--", "sleep", "60")
    assert out.returncode == 124
    assert out.stderr.startswith(b"dutyfree: the deadline passed")


def test_run_says_137_when_the_command_was_killed():
    assert dutyfree("run", "-s", "host", "--", "kill -9 $$").returncode == 137


@pytest.mark.skipif(os.geteuid() != 0, reason="memory is limited for root")
def test_what_the_memory_limit_killed_is_told_though_the_command_ends_well():
    command = "python3 -c \"x = b'x' * (512 << 20)\"; echo on"
    out = dutyfree("run", "-s", "native", "--memory", "64M", "--", command)
    assert (out.returncode, out.stdout) == (0, b"on\n")
    assert b"the memory limit killed 1 process" in out.stderr


def test_run_sets_variables_and_place():
    out = dutyfree("run", "-s", "host", "--env", "A=1=2", "--cwd", "/usr", "--", "echo $A $PWD")
    assert out.stdout == b"1=2 /usr\n"


def test_run_tells_where_the_time_went_on_stderr_only():
    out = dutyfree("run", "-s", "noop", "--time", "--", "true")
    assert out.stdout == b""
    assert b"create" in out.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("run", "-s", "hots", "--", "true"), errors.NOT_STARTED, b"did you mean 'host'"),
        (("run", "-s", "host", "--memory", "1x", "--", "true"), errors.NOT_STARTED, b"512M"),
        (("run", "-s", "host", "--memory", "512M", "--", "true"), errors.NOT_STARTED, b"dutyfree doctor"),
        (("run", "-s", "host", "--env", "A", "--", "true"), errors.NOT_STARTED, b"NAME=value"),
        (("run", "-s", "host", "--image", "nope", "--", "true"), errors.NOT_STARTED, b"image"),
        (("run", "-s", "host", "--timeout", "0", "--", "true"), errors.NOT_STARTED, b"timeout_s"),
        (("run", "-s", "host", "--timeout", "nan", "--", "true"), errors.NOT_STARTED, b"timeout_s"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(words: tuple[str, ...], code: int, says: bytes):
    out = dutyfree(*words)
    assert out.returncode == code
    assert out.stderr.startswith(b"dutyfree: ")
    assert out.stderr.count(b"\n") == 1
    assert says in out.stderr


def test_the_traceback_is_there_when_asked_for():
    out = dutyfree("run", "-s", "hots", "--", "true", env={"DUTYFREE_DEBUG": "1"})
    assert b"Traceback" in out.stderr


def test_an_interrupt_ends_quietly_with_130_and_takes_the_command_along():
    command = [sys.executable, "-m", "dutyfree", "run", "-s", "host", "--", "echo $$; exec sleep 60"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        inner = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
        assert (process.returncode, stderr) == (errors.INTERRUPTED, b"")
    with pytest.raises(ProcessLookupError):
        os.kill(inner, 0)


def test_a_reader_that_leaves_is_no_error():
    script = f"{sys.executable} -m dutyfree.cli.main run -s host -- yes | head -n 1"
    out = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert (out.stdout, out.stderr) == (b"y\n", b"")


def test_doctor_speaks_json():
    found = json.loads(dutyfree("doctor", "--json").stdout)
    rows = {row["name"]: row for row in found["substrates"]}
    assert {"host", "native", "noop"} <= set(rows)
    for row in rows.values():
        assert set(row) >= {"name", "available", "reason", "enable", "version", "capabilities"}
    assert rows["host"]["available"]
    assert rows["host"]["capabilities"]["isolation"] == "none"
    assert found["host"]["cpus"] >= 1


def test_doctor_speaks_to_people():
    out = dutyfree("doctor")
    assert out.returncode == 0
    assert b"host" in out.stdout


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (Misuse("wrong", field="x"), 2, "x: wrong"),
        (Unsupported("fork is not offered"), 2, "dutyfree doctor"),
        (Unavailable("no", enable="apt install it"), 3, "to enable: apt install it"),
        (Unavailable("no"), 3, "dutyfree doctor"),
        (Saturated("full", retry_after_s=2), 3, "try again in 2 s"),
        (SandboxLost("gone"), 4, "DUTYFREE_DEBUG=1"),
        (DriverError("broke", driver="native", step="create"), 4, "(driver native, step create)"),
        (FileNotFoundError(2, "No such file", "x"), 2, "No such file"),
        (OSError(28, "No space left"), 4, "No space left"),
    ],
)
def test_every_error_of_the_tree_has_its_code_and_its_next_step(error: Exception, code: int, says: str):
    assert errors.exit_code(error) == code
    assert says in errors.describe(error)
    assert "\n" not in errors.describe(error)
