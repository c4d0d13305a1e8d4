"""`dutyfree measure` and `report` as a user runs them, on the substrates every machine has."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "dutyfree.cli.main"]


def dutyfree(*words, timeout_s=110, **options):
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )


def ids(directory):
    lines = (directory / "records.jsonl").read_text().splitlines()
    return [json.loads(line)["id"] for line in lines]


T0 = ("-s", "host", "-s", "noop", "--tier", "T0", "--steps", "0,10", "--trials", "3")


def test_measure_and_report_on_host_and_noop(tmp_path):
    out = tmp_path / "run"
    done = dutyfree("measure", *T0, "-o", out)
    assert done.returncode == 0, done.stderr
    assert f"next: dutyfree report {out}" in done.stdout
    shown = dutyfree("report", out)
    assert shown.returncode == 0, shown.stderr
    assert "reference" in shown.stdout
    assert str(out / "report.html") in shown.stdout
    summary = json.loads((out / "summary.json").read_text())
    rows = {(r["substrate"], r["tier"], r["steps"]): r for r in summary["results"]}
    assert rows.keys() == {(s, "T0", n) for s in ("host", "noop") for n in (0, 10)}
    for row in rows.values():
        assert row["failures"] == 0
        assert sum(row["decomposition_s"].values()) == pytest.approx(row["mean_s"], rel=0.01)
    assert summary["instrument"]["per_action_s"] < rows["host", "T0", 10]["amortised_action_s"]


@pytest.mark.parametrize("missing", ["noop", "host"])
def test_the_reports_advice_for_a_missing_substrate_works_as_it_is_printed(tmp_path, missing):
    out = tmp_path / "run"
    other = {"noop": "host", "host": "noop"}[missing]
    asked = ("-s", other, "--tier=T0", "--steps", "0,10", "--trials", "3", "-o", out)
    assert dutyfree("measure", *asked).returncode == 0
    line = next(line for line in dutyfree("report", out).stdout.splitlines() if "was not measured" in line)
    for command in re.findall(r"`(dutyfree .*?)`", line):
        done = dutyfree(*shlex.split(command)[1:], *(("--trials", "3") if " measure " in command else ()))
        assert done.returncode == 0, done.stderr
    assert "was not measured" not in done.stdout
    found = json.loads((out / "summary.json").read_text())
    assert {row["substrate"] for row in found["results"]} == {"host", "noop"}
    assert set(found["subjects"]) == {"host", "noop"}


def test_project_prints_the_tables(tmp_path):
    out = tmp_path / "run"
    assert dutyfree("measure", *T0, "-o", out).returncode == 0
    shown = dutyfree("project", out, "--trajectories", "1e6", "--price", "2")
    assert shown.returncode == 0, shown.stderr
    for text in ("Worker-hours", "Sensitivity", "ranking", "long tail", "4,167"):
        assert text in shown.stdout


def test_two_runs_have_the_same_order_and_a_finished_one_is_not_repeated(tmp_path):
    for name in ("a", "b"):
        assert dutyfree("measure", *T0, "-o", tmp_path / name).returncode == 0
    assert ids(tmp_path / "a") == ids(tmp_path / "b")
    again = dutyfree("measure", *T0, "-o", tmp_path / "a")
    assert "nothing left to measure" in again.stderr
    assert ids(tmp_path / "a") == ids(tmp_path / "b")


def cut(tmp_path, number):
    """Start a run whose trials wait for us, let three of them end, and send a signal while the fourth waits."""
    here, go_on, trace = tmp_path / "here", tmp_path / "go-on", tmp_path / "trace.json"
    for fifo in (here, go_on):
        os.mkfifo(fifo)
    trace.write_text(json.dumps([f"echo > {here}; read < {go_on}"]))
    words = (
        "-s",
        "host",
        "--trace",
        str(trace),
        "--trace-anywhere",
        "--trace-unisolated",
        "--trials",
        "5",
        "--warmup",
        "0",
    )
    # A killed run cannot remove the directory of its last sandbox.
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [*COMMAND, "measure", *words, "-o", str(tmp_path / "cut")]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        for _ in range(3):
            here.read_text()
            go_on.write_text("\n")
        here.read_text()
        running.send_signal(number)
        said = running.stderr.read()
    # What a killed run left waiting: let it end.
    with contextlib.suppress(OSError), open(os.open(go_on, os.O_WRONLY | os.O_NONBLOCK), "w") as orphan:
        orphan.write("\n")
    for fifo in (here, go_on):
        fifo.unlink()
    go_on.write_text("\n")
    return words, running.returncode, said


def test_an_interrupted_run_keeps_what_it_measured_and_goes_on(tmp_path):
    words, code, said = cut(tmp_path, signal.SIGINT)
    assert code == 130, said
    assert "goes on from there" in said
    kept = (tmp_path / "cut" / "records.jsonl").read_text().splitlines()
    assert len(kept) == 3
    assert all(json.loads(line)["ok"] for line in kept), "an interrupt is not a failure"
    for name in ("cut", "whole"):
        assert dutyfree("measure", *words, "-o", tmp_path / name).returncode == 0
    assert ids(tmp_path / "cut") == ids(tmp_path / "whole")
    assert (tmp_path / "cut" / "records.jsonl").read_text().splitlines()[: len(kept)] == kept


def test_a_run_killed_outright_keeps_every_finished_trial(tmp_path):
    words, _, _ = cut(tmp_path, signal.SIGKILL)
    kept = ids(tmp_path / "cut")
    assert len(kept) == 3
    assert dutyfree("measure", *words, "-o", tmp_path / "cut").returncode == 0
    assert ids(tmp_path / "cut")[: len(kept)] == kept
    assert len(ids(tmp_path / "cut")) == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-s", "nowhere"), "nowhere"),
        (("-s", "host", "--tier", "T9"), "T9"),
        (("-s", "host", "--steps", "ten"), "ten"),
        (("-s", "host", "--steps", "-1"), "between"),
        (("-s", "host", "-s", "host", "--tier", "T0"), "twice"),
        (("-s", "host", "--trace", "/nowhere.traj"), "/nowhere.traj"),
        (("-s", "host", "--repo", "x"), "--commit"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(tmp_path, words, says):
    done = dutyfree("measure", *words, "-o", tmp_path / "run")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_reporting_nothing_says_what_to_do(tmp_path):
    done = dutyfree("report", tmp_path)
    assert done.returncode == 2
    assert "dutyfree measure" in done.stderr


def test_a_trace_is_not_run_on_the_bare_host_unless_asked_for(tmp_path):
    trace = tmp_path / "t.json"
    trace.write_text('["echo hello > x", "cat x", "false"]')
    done = dutyfree(
        "measure", "-s", "host", "--trace", trace, "--trace-anywhere", "--trials", "2", "-o", tmp_path / "a"
    )
    assert "not offered: host trace" in done.stderr
    done = dutyfree(
        "measure", "-s", "host", "--trace", trace, "--trace-unisolated", "--trace-anywhere", "--trials", "2", "-o",
        tmp_path / "b",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "b" / "records.jsonl").read_text().splitlines()]
    assert [(r["tier"], r["steps"], r["ok"], r["exit_codes"]) for r in records] == [("trace", 3, True, [0, 0, 1])] * 3
    said = dutyfree("report", tmp_path / "b").stdout
    assert "host trace 3 steps: replayed without its own image, directory, shell" in said
    assert "2 of 6 commands failed, and the recording does not say if they should" in said


def test_a_replay_is_held_to_the_exit_codes_of_its_recording(tmp_path):
    messages = [
        {"role": "assistant", "content": f"```bash\n{command}\n```"} for command in ("true", "pytest-of-theirs -q")
    ]
    observed = {"role": "user", "content": "<returncode>0</returncode>"}
    trace = tmp_path / "messages.json"
    trace.write_text(json.dumps([part for message in messages for part in (message, observed)]))
    words = ("--trace-image", "host", "--trace-cwd", "/", "--trace-shell", "bash -c", "--trace-unisolated")
    done = dutyfree("measure", "-s", "host", "--trace", trace, *words, "--trials", "1", "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    said = dutyfree("report", tmp_path / "run").stdout
    assert "1 of 2 commands ended otherwise than in the recording; compare nothing" in said


def test_a_replay_that_knows_no_place_of_its_own_is_refused(tmp_path):
    (tmp_path / "t.json").write_text('["pytest -q"]')
    done = dutyfree("measure", "-s", "host", "--trace", tmp_path / "t.json", "-o", tmp_path / "run")
    assert done.returncode == 2
    assert "--trace-cwd" in done.stderr
