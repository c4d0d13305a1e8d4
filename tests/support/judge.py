"""Judges of adapters: a framework's own tests, run in a virtual environment of their own, and the table of what they said.

Environments are kept in `DUTYFREE_CACHE` (else ~/.cache/dutyfree), one per judge and checkout, and made anew when what is
to be installed has changed. `DUTYFREE_JUDGES=write` writes the table's row; else a row that differs fails the test.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "judges"
TABLE = ROOT / "docs" / "reference" / "frameworks.md"
VARIABLE = "DUTYFREE_JUDGES"
INSTALL_S, CLONE_S, RUN_S = 300, 60, 600
_HEAD = "| framework | version | judge | passed | failed, and why |"


@dataclass(frozen=True, kw_only=True)
class Judge:
    """One framework's tests, and where they come from."""

    framework: str
    package: str
    version: str
    says: str
    """What is run; for the table."""
    files: tuple[str, ...]
    """Below tests/judges; or, with `sdist` or `source`, below that."""
    needs: tuple[str, ...] = ("pytest", "pytest-asyncio")
    overrides: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    sdist: bool = False
    """The tests are in the package's source distribution only."""
    repository: str = ""
    """The tests are in this repository only, at the tag that is the version."""
    conftest: bool = False
    """Its tests need their own fixtures."""
    plugin: str = ""
    """A module of tests/judges that the framework's own tests are run with."""
    deselected: Mapping[str, str] = field(default_factory=dict)
    """Tests that are not about an environment, by a part of their name, and why."""
    excused: Mapping[str, str] = field(default_factory=dict)
    """Tests that fail, and why."""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Verdict:
    passed: frozenset[str]
    failed: frozenset[str]
    output: str


def cache() -> Path:
    base = os.environ.get("DUTYFREE_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "dutyfree") / "judges"


def python_for(wanted: tuple[int, int]) -> str:
    """An interpreter that is new enough, or a skip that says what to install."""
    if sys.version_info[:2] >= wanted:
        return sys._base_executable
    name = f"python{wanted[0]}.{wanted[1]}"
    found = [
        shutil.which(name),
        *map(str, sorted(Path.home().glob(f".pyenv/versions/{wanted[0]}.{wanted[1]}*/bin/{name}"))),
    ]
    for path in found:
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip(f"{name} is not installed; on Debian 13: apt-get install -y {name} {name}-venv")


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _uv(*words: str) -> None:
    program = Path(sys.executable).with_name("uv")
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(
        [program, *words, "--no-config"],
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_S,
        env=environment,
    )
    if done.returncode:
        pytest.skip(f"cannot be installed here: {done.stderr.strip()[-400:]}")


def environment(judge: Judge) -> Path:
    """The interpreter of the judge's environment, made unless it is there."""
    place = cache() / f"{judge.package}-{judge.version}-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
    wanted = [judge.requirement, *judge.needs, *judge.overrides, python_for(judge.python)]
    key = hashlib.sha256("\n".join([*wanted, (ROOT / "pyproject.toml").read_text()]).encode()).hexdigest()
    stamp, interpreter = place / "made-of", place / "bin" / "python"
    with _locked(place):
        if stamp.is_file() and stamp.read_text() == key:
            return interpreter
        shutil.rmtree(place, ignore_errors=True)
        _uv("venv", "--quiet", "--python", wanted[-1], str(place))
        over = place / "overrides.txt"
        over.write_text("".join(f"{line}\n" for line in judge.overrides))
        install = ("pip", "install", "--quiet", "--python", str(interpreter), "--override", str(over))
        _uv(*install, judge.requirement, *judge.needs, "hatchling", "editables")
        _uv(*install, "--no-build-isolation", "--editable", str(ROOT))
        stamp.write_text(key)
    return interpreter


def source(judge: Judge) -> Path:
    """The framework's sources, fetched once; a copy that somebody has put there will do."""
    place = cache() / f"{judge.package}-{judge.version}"
    with _locked(place):
        if not place.is_dir() and judge.repository:
            words = ["clone", "--quiet", "--depth=1", "--branch", f"v{judge.version}", judge.repository, str(place)]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(["git", *words], capture_output=True, check=False, timeout=CLONE_S)
            if not (place / judge.files[0]).is_file():
                shutil.rmtree(place, ignore_errors=True)
                pytest.skip(f"its tests are in its repository only, which cannot be reached: git {' '.join(words)}")
        if not place.is_dir():
            fresh = Path(f"{place}.fresh")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            words = [
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                ":all:",
                "--dest",
                str(fresh),
                judge.requirement,
            ]
            done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"its source distribution cannot be fetched: {done.stderr.strip()[-300:]}")
            (archive,) = fresh.glob("*.tar.gz")
            shutil.unpack_archive(archive, fresh)
            (tree,) = (path for path in fresh.iterdir() if path.is_dir())
            tree.rename(place)
            shutil.rmtree(fresh)
    return place


def run(judge: Judge, tmp_path: Path, **variables: str) -> Verdict:
    """Run the judge's tests, and take down how each ended."""
    interpreter = environment(judge)
    base = source(judge) if judge.sdist or judge.repository else SCRIPTS
    report = tmp_path / "report.xml"
    words = [
        str(interpreter), "-m", "pytest", "-q", *([] if judge.conftest else ["--noconftest"]), "-p", "no:cacheprovider", "-c", os.devnull,
        "-o", "asyncio_mode=auto", f"--rootdir={base}", f"--junitxml={report}", *(["-p", judge.plugin] if judge.plugin else []),
        *(str(base / name) for name in judge.files),
    ]  # fmt: skip
    settings = {"PYTHONPATH": str(SCRIPTS), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | settings
    if judge.deselected:
        words += ["-k", " and ".join(f"not {name}" for name in judge.deselected)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environ, timeout=RUN_S)
    assert report.is_file(), done.stdout[-3000:] + done.stderr[-3000:]
    passed, failed = set(), set()
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if "skipped" not in kinds:
            (failed if kinds & {"failure", "error"} else passed).add(case.get("name", ""))
    return Verdict(frozenset(passed), frozenset(failed), done.stdout[-12_000:])


def check(judge: Judge, verdict: Verdict) -> None:
    """What failed is what is known to fail; and the table says the same."""
    assert verdict.failed == judge.excused.keys(), f"{sorted(verdict.failed)}\n{verdict.output}"
    why = "; ".join(f"{len(names)}: {reason}" for reason, names in _grouped(judge.excused).items()) or "none"
    record(judge.framework, f"{judge.package} {judge.version}", judge.says, str(len(verdict.passed)), why)


def _grouped(excused: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, reason in excused.items():
        groups.setdefault(reason, []).append(name)
    return groups


def record(*cells: str) -> None:
    """Compare a row of the table, or write it."""
    row = f"| {' | '.join(cells)} |"
    text = TABLE.read_text()
    if os.environ.get(VARIABLE) != "write":
        assert row in text.splitlines(), f"{TABLE.name} has no such row; make judges writes it:\n{row}"
        return
    with _locked(cache() / "table"):
        lines = TABLE.read_text().splitlines()
        start = lines.index(_HEAD) + 2
        end = next((at for at in range(start, len(lines)) if not lines[at].startswith("|")), len(lines))
        rows = {tuple(line.split(" | ")[i].strip("| ") for i in (0, 1, 2)): line for line in lines[start:end]}
        rows[cells[0], cells[1], cells[2]] = row
        TABLE.write_text("\n".join([*lines[:start], *sorted(rows.values()), *lines[end:]]) + "\n")
