"""The native substrate for somebody who is not root: less is offered, and that is said and not hidden."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

import dutyfree
from dutyfree.substrates.registry import find

UID = 1000


def reachable(path):
    """Everybody may pass through every directory above."""
    return all(parent.stat().st_mode & 0o001 for parent in Path(path).resolve().parents)


def interpreter():
    """A Python that everybody may run: ours, or the system's if it is new enough."""
    for program in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        found = os.path.realpath(program)
        new = "import sys; sys.exit(sys.version_info < (3, 11))"
        if (
            os.path.exists(found)
            and reachable(found)
            and subprocess.run([program, "-c", new], check=False).returncode == 0
        ):
            return program
    return None


@pytest.fixture(scope="module")
def said():
    """What `ordinary.py` says when an ordinary user runs it."""
    python = interpreter()
    if python is None or not reachable(dutyfree.__file__):
        pytest.skip(
            "Python or the sources are where ordinary users cannot go: apt-get install python3, move the checkout"
        )
    as_user = {"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}
    found = find("native")[0].probe()
    if not found.available:
        pytest.skip(f"native: {found.reason}; enable: {found.enable}")
    home = tempfile.mkdtemp(prefix="ordinary-")
    try:
        if as_user:
            os.chown(home, UID, UID)
        script = Path(__file__).with_name("ordinary.py").read_text()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "TMPDIR": home,
            "DUTYFREE_HOME": f"{home}/store",
            "PYTHONPATH": os.pathsep.join([sysconfig.get_path("purelib"), str(Path(dutyfree.__file__).parents[1])]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [python, "-c", script], capture_output=True, env=environment, cwd="/", check=False, **as_user
        )
        assert done.returncode == 0, done.stderr.decode()
        yield json.loads(done.stdout)
    finally:
        shutil.rmtree(home)


def test_it_is_available_and_says_who_asks(said):
    assert said["available"]
    assert "ordinary user" in said["reason"]


def test_what_is_lost_without_cgroups_is_declared(said):
    assert "memory_bytes" not in said["limits"]
    assert "cpus" not in said["limits"]
    assert "memory_bytes" in said["notes"]["limits"]


def test_limits_that_cannot_be_enforced_are_refused_and_the_others_given(said):
    assert set(said["refused"]) == {"memory_bytes", "cpus"}
    assert all(text.startswith("Unsupported") for text in said["refused"].values())


def test_other_users_and_disks_are_refused(said):
    assert said["disk"].startswith("Unsupported")
    assert said["user"].startswith("Unsupported")


def test_sandboxes_work_as_they_do_for_root(said):
    used = said["used"]
    assert used["read"] == "written\n"
    assert used["late"] == "timeout"
    assert used["who"] == "0"
    assert used["shell"] == "/tmp kept"


def test_sandboxes_isolate_as_they_do_for_root(said):
    used = said["used"]
    assert used["sibling_sees"] == []
    assert used["network"] == ["lo"]
    assert used["seccomp"] == ["Seccomp:\t2"]
    assert not used["passwd"]
