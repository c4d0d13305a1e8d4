"""Every example runs as its docstring says, and says what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "fork": ["ready", "rewards: [10, 271, 500]", "from the best: 501", "after a reset: ls: cannot access '/work'"],
    "quickstart": ["before the fix: exit 1 AssertionError: 0", "after the fix:  exit 0"],
    "group": ["16 rollouts in", "mean reward"],
    "one_service": ["allowed: hello from the owner", "refused: ConnectionRefusedError"],
    "warm": ["8 saw sums.py staged", "8 of 8 sandboxes were waiting"],
    "verify": ["untouched: reward 0.0", "exits early: reward 0.0", "solved: reward 1.0"],
    "synchronous": ["hello from /tmp/work", "a stuck command: timeout - the shell is alive"],
}


def test_every_example_is_known_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        *SAID,
        "driver",
        "ray_rollouts",
    }  # these have suites of their own


@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example_says_what_it_should(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line in SAID[name]:
        assert line in done.stdout


def test_the_group_runs_on_the_reference_too() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "group.py", "host"], capture_output=True, text=True, check=False)
    assert "16 rollouts in" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["native", "host", "noop"])
def test_the_programme_of_the_readme_runs_on_every_substrate_it_names(name: str) -> None:
    text = (EXAMPLES.parent / "README.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    assert 'connect("native")' in code
    code = code.replace('connect("native")', f'connect("{name}")')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert name == "noop" or "hello from" in done.stdout


def commands_of_the_readme() -> list[str]:
    text = (EXAMPLES.parent / "README.md").read_text().partition("## On the command line\n")[2].partition("\n\n")[0]
    return [line.strip().partition("   ")[0] for line in text.splitlines()]


def test_the_commands_of_the_readme_work_in_their_order_when_pasted(tmp_path: Path) -> None:
    commands = commands_of_the_readme()
    assert [command.split()[1] for command in commands] == ["demo", "doctor", "run", "run", "run", "measure", "report"]
    (tmp_path / "mine").write_text("")
    few = " -s host -s noop --tier T0 --steps 0 --trials 2"
    for command in commands:
        words = (
            f"{command}{few}"
            if " measure " in command
            else f"{command.replace(' -it', '')} -- true"
            if "-it" in command
            else command
        )
        if "--memory" in command and os.geteuid() != 0:
            continue  # limits are for root
        done = subprocess.run(
            ["bash", "-c", words.replace("dutyfree", f"{sys.executable} -m dutyfree", 1)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
        assert "--upload" not in command or done.stdout == "mine\n"
