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


def programs_of_the_tutorial() -> list[str]:
    text = (EXAMPLES.parent / "docs" / "tutorial.md").read_text()
    blocks = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    return [block for block in blocks if "asyncio.run(main())" in block]


@pytest.mark.parametrize("name", ["native", "host"])
def test_the_first_program_of_the_tutorial_says_what_it_should(name: str) -> None:
    code = programs_of_the_tutorial()[0].replace('connect("native")', f'connect("{name}")')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "reward: 1.0" in done.stdout, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="states are for root: sudo make test")
def test_the_other_programs_of_the_tutorial_start_from_stages(tmp_path: Path) -> None:
    git = ["git", "-C", tmp_path, "-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    (tmp_path / "sums.py").write_text("one = 1\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "sums"]):
        subprocess.run([*git, *words], check=True)
    _, stages, group = programs_of_the_tutorial()
    for code, said in ((stages.replace("/path/to/your/repository", str(tmp_path)), "sums.py"), (group, "rewards: [")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert said in done.stdout, done.stderr


@pytest.mark.slow("a newcomer's first half hour")
def test_the_installation_of_the_readme_works_when_pasted(tmp_path: Path) -> None:
    root = EXAMPLES.parent
    text = (root / "README.md").read_text().partition("## Install\n")[2].partition("\n\nTwo commands")[0]
    commands = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert any(command.startswith("pip install") for command in commands)
    tracked = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False).stdout
    if not tracked:
        pytest.skip("needs the repository: git clone")
    subprocess.run(
        f"git -C '{root}' ls-files -z | tar -C '{root}' --null -T - -c | tar -x -C '{tmp_path}'", shell=True, check=True
    )
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "DUTYFREE_HOME": str(tmp_path / "store")}
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)], cwd=tmp_path, env=home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "hello from a sandbox"


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
