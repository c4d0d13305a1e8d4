"""SWE-ReX's local runtime (no isolation), in a virtual environment of its own, timed by a worker inside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.interleave import Contender, Missing, SampleFailed

REQUIREMENT = "swe-rex==1.4.0"
PYTHON = Path("out/envs/swe-rex/bin/python")

_WORKER = Path(__file__).with_name("swerex_worker.py")


@contextmanager
def contenders(progress: Callable[[str], None]) -> Iterator[list[Contender]]:
    """Installs SWE-ReX if it is not there yet."""
    _provide(progress)
    with subprocess.Popen([PYTHON, "-P", _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        try:
            found = _answer(worker)["version"]

            def asking(word: str) -> Callable[[], int]:
                return lambda: _ask(worker, word)

            label = f"SWE-ReX {found}, local: "
            yield [
                Contender(
                    name="swe-rex/start", group="start", share=0.2, measure=asking("start"),
                    label=label + "runtime, session, `run_in_session`",
                ),
                Contender(
                    name="swe-rex/action", group="action", share=1 / 3, measure=asking("action"),
                    label=label + '`run_in_session("true")`',
                ),
                Contender(
                    name="swe-rex/execute", group="action", measure=asking("execute"), label=label + '`execute(["true"])`'
                ),
            ]  # fmt: skip
        finally:
            assert worker.stdin is not None
            worker.stdin.close()


def _provide(progress: Callable[[str], None]) -> None:
    by_hand = f"python3 -m venv {PYTHON.parents[1]} && {PYTHON} -m pip install {REQUIREMENT}"
    if not _imports():
        progress(f"installing {REQUIREMENT} in {PYTHON.parents[1]}")
        commands = (
            [sys.executable, "-m", "venv", str(PYTHON.parents[1])],
            [str(PYTHON), "-m", "pip", "install", REQUIREMENT],
        )
        for command in commands:
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                raise Missing("swe-rex could not be installed (no package index?)", by_hand)


def _imports() -> bool:
    if not PYTHON.exists():
        return False
    return subprocess.run([PYTHON, "-c", "import swerex"], capture_output=True, check=False).returncode == 0


def _ask(worker: subprocess.Popen[str], word: str) -> int:
    assert worker.stdin is not None
    worker.stdin.write(word + "\n")
    worker.stdin.flush()
    answer = _answer(worker)
    if "failure" in answer:
        raise SampleFailed(answer["failure"])
    return int(answer["ns"])


def _answer(worker: subprocess.Popen[str]) -> dict[str, str]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise SampleFailed("the worker of SWE-ReX ended")
    answer: dict[str, str] = json.loads(line)
    return answer
