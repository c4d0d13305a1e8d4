"""A newcomer's first half hour: an installed wheel, the README's program, the command line, and five first programs.

As root, and as an ordinary user, on the oldest Python claimed and on the newest there is. Every step runs; all that
failed are told together.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("first_programs.py")
NEWEST = (14, 13, 12)
EXAMPLES = ("quickstart", "group", "fork", "warm", "verify", "synchronous", "one_service")
SOMEBODY = 54321
STEP_S = 180
ROOTFS = """
for program in /bin/bash /bin/ls /bin/touch; do cp --parents -L $program $(ldd $program | grep -o '/[^ ]*') rootfs; done
tar -C rootfs -cf rootfs.tar .
"""
"""An image of one's own."""

pytestmark = [pytest.mark.slow("a newcomer's first half hour"), pytest.mark.timeout(600)]


def pythons():
    """Debian's own, and the newest that can be had."""
    debian = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in NEWEST:
        for found in (shutil.which(f"python3.{minor}"), *sorted(kept.glob(f"3.{minor}.*/bin/python3"))):
            if found and subprocess.run([found, "-c", ""], check=False, stderr=subprocess.DEVNULL).returncode == 0:
                return {"debian": debian, "newest": str(found)}
    return {"debian": debian}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", place, ROOT], check=True, capture_output=True
    )
    (found,) = place.glob("*.whl")
    return found


class Newcomer:
    """Somebody with an empty environment, a home and an installation; remembers what went wrong."""

    def __init__(self, home, python, uid):
        self.home, self.uid, self.steps, self.failed = home, uid, 0, []
        self.env = {
            "HOME": str(home),
            "PATH": f"{home}/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DUTYFREE_HOME": f"{home}/store",
        }
        home.mkdir()
        shutil.copy(PROGRAMS, home)
        shutil.copytree(ROOT / "examples", home / "examples")
        (home / "work").mkdir()
        (home / "rootfs").mkdir()
        (home / "work/answer.txt").write_text("42\n")
        subprocess.run([python, "-m", "venv", home / "venv"], check=True)
        for path in [home, *home.rglob("*")] if uid else []:
            os.lchown(path, uid, uid)

    def does(self, command, says="", code=0, stdin=""):
        self.steps += 1
        who = {"user": self.uid, "group": self.uid, "extra_groups": []} if self.uid else {}
        done = subprocess.run(
            command if isinstance(command, list) else ["bash", "-c", command],
            env=self.env, cwd=self.home, input=stdin, capture_output=True, text=True, timeout=STEP_S, check=False, **who,
        )  # fmt: skip
        said = done.stdout + done.stderr
        if done.returncode != code or not re.search(says, said) or "Traceback" in said:
            self.failed.append(
                f"{command}\nexit code {done.returncode}, expected {code} and {says!r}; said:\n{said[-2000:]}"
            )
        return done.stdout


def readme_program():
    """The README's Python, as it stands there."""
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]


def first_half_hour(new, wheel):
    new.does(["pip", "install", "-q", "--disable-pip-version-check", f"dutyfree[report] @ file://{wheel}"])
    new.does("dutyfree --version", r"dutyfree \d+\.\d+")
    new.does("dutyfree -V", r"\d+\.\d+")
    new.does("dutyfree --help", "doctor")
    new.does("python -m dutyfree --help", "doctor")
    new.does("dutyfree doctor", "native")
    new.does(
        'dutyfree doctor --json | python -c \'import json, sys; print({s["name"]: s["available"] for s in json.load(sys.stdin)["substrates"]})\'',
        "'native': True",
    )
    new.does(["python", "-c", readme_program()], r"^exit 3 b'hello from \d+\\n'")
    new.does("dutyfree run -- 'echo hello; exit 3'", "hello", 3)
    new.does("dutyfree run -- no-such-program", "no-such-program", 127)
    new.does("dutyfree run --timeout 0.5 -- sleep 60", code=124)
    new.does("dutyfree run -- cat", "typed", stdin="typed")
    new.does("dutyfree run --env A=1 --cwd /tmp -- 'echo $A $PWD'", "1 /tmp")
    new.does(
        "dutyfree run --upload work:/work --download /work/out:out -- 'mkdir /work/out; cp /work/answer.txt /work/out'"
    )
    new.does("cat out/answer.txt", "42")
    new.does("dutyfree demo", "reward")
    new.does("dutyfree run -s host -- 'echo plain'", "plain")
    new.does("DUTYFREE_SUBSTRATE=host dutyfree run -- 'echo plain'", "plain")
    for name in ("session", "crowd", "workers"):
        new.does(["python", "first_programs.py", name], f"^{name}: ")
    new.does(
        "dutyfree measure -s host -s native -s noop --tier T0 --steps 0,10 --trials 8 -o run",
        "next: dutyfree report run",
    )
    new.does(
        "dutyfree measure -s host -s native -s noop --tier T0 --steps 0,10 --trials 8 -o run",
        "next: dutyfree report run",
    )
    new.does("dutyfree report run", "report.html")
    new.does("test -s run/report.html && test -s run/summary.json && test -s run/tables.md")
    new.does("dutyfree project run --trajectories 1e6", "Worker-hours")
    new.does("dutyfree simulate --nodes 8 --tasks 20 --groups 50", "nearest")
    new.does(ROOTFS)
    new.does("dutyfree image import rootfs.tar --name small", "small")
    new.does("dutyfree image export small --to oci -o layout")
    new.does("dutyfree image import ./layout --name mine", "mine")
    new.does("dutyfree image list", "mine")
    new.does("dutyfree image verify mine", "intact")
    new.does(["python", "first_programs.py", "image", "mine"], "image: mine")
    new.does("dutyfree run --image mine -- 'echo inside'", "inside")
    new.does("dutyfree image remove mine")
    new.does("dutyfree image gc")


def only_root(new):
    """What an ordinary user is not offered: limits, forks and snapshots."""
    new.does("dutyfree run --memory 64M -- python3 -c 'len(str(1) * (1 << 28))'", code=137)
    new.does(["python", "first_programs.py", "groups"], "groups: 64 rewards, sum 36")
    for name in EXAMPLES:
        new.does(["python", f"examples/{name}.py"])
    new.does("dutyfree probe -s native --only 1-5", "5")
    new.does("dutyfree stage list")


@pytest.mark.parametrize("who", ["root", "somebody"])
@pytest.mark.parametrize("python", pythons())
def test_a_newcomers_first_half_hour(python, who, wheel):
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root: sudo make test-all")
    uid = SOMEBODY if who == "somebody" and os.geteuid() == 0 else 0
    program = pythons()[python]
    if uid and subprocess.run(["test", "-x", program], check=False, user=uid).returncode:
        pytest.skip(f"an ordinary user cannot run {program}: put it where everybody can")
    # Not below pytest's own directory, which each new run on this machine closes to others again.
    with tempfile.TemporaryDirectory(prefix="newcomer-") as place:
        os.chmod(place, 0o755)
        new = Newcomer(Path(place) / "home", program, uid)
        shutil.copy(wheel, new.home)
        first_half_hour(new, new.home / wheel.name)
        if who == "root":
            only_root(new)
    assert new.failed == [], f"{len(new.failed)} of {new.steps} steps failed:\n\n" + "\n\n".join(new.failed)
