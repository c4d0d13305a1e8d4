"""Material of T1 and T2 on this machine: a repository with a bug, its checkout, and the test dependencies.

Fetched once through pip (pinned by version and hash), turned into a git history whose commit ids are always the same,
and cached under the user's cache directory. Everything a sandbox gets is uploaded or cloned from here, so that all
substrates, the host included, run the same bytes; of the image only python3 and git are used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.errors import DriverError, Misuse, Unavailable
from dutyfree.meter.workloads import bug
from dutyfree.meter.workloads.tree import PYTHON

_RECIPE = 1
"""Raise when what is built below changes: older caches are then left alone and not used."""

ATTRS = "attrs==24.2.0 --hash=sha256:5cfb1b9148b5b086569baec03f20d7b6bf3bcacc9a42bebf87ffaaca362f6346"
"""The source distribution, by its hash."""

SITE = (
    "exceptiongroup==1.2.2 --hash=sha256:3111b9d131c238bec2f8f516e123e14ba243563fb135d3fe885990585aa7795b",
    "hypothesis==6.122.3 --hash=sha256:f0f57036d3b95b979491602b32c95b6725c3af678cccb6165d8de330857f3c83",
    "iniconfig==2.0.0 --hash=sha256:b6a85871a79d2e3b22d2d1b94ac2824226a63c6b741c88f7ae975f18b6778374",
    "packaging==24.2 --hash=sha256:09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759",
    "pluggy==1.5.0 --hash=sha256:44e1ad92c8ca002de6377e165f3e0f1be63266ab4d554740532335b9d75ea669",
    "pytest==8.3.4 --hash=sha256:50e16d954148559c9a74109af1eaf0c945ba2d8f30f0a3d3335edde19788b6f6",
    "sortedcontainers==2.4.0 --hash=sha256:a163dcaede0f1c021485e957a39245190e74249897e2ae4b2aa38595db237ee0",
    "tomli==2.0.1 --hash=sha256:939de3e7a6161af0c887ef91b7d41a53e7c5a1ca976325f429cb46ea9bc30ecc",
)
"""What attrs' own tests import: wheels of pure Python, so the same files serve every machine. attrs itself comes from
the checkout."""

_WHO = {"NAME": "dutyfree", "EMAIL": "dutyfree@localhost"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A repository with a bug in it, ready to be uploaded and served."""

    name: str
    repository: Path
    """Bare; what the git server serves."""
    tree: Path
    """A checkout at the buggy commit, with its history."""
    site: Path
    """Test dependencies, for PYTHONPATH."""
    commit: str
    subject: str
    """First line of the buggy commit's message."""
    patch: bytes
    """Fixes the bug; for `git apply`."""
    reproduce: str
    """Exits with 1 as long as the bug is there."""
    test: str
    """Passes once the patch is applied, not before."""
    test_says: bytes
    """In its output when it passes."""
    files_answer: bytes
    """What `git ls-files | wc -l` prints at the commit."""


def cache_directory() -> Path:
    """Directory that keeps the material; XDG_CACHE_HOME is respected."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dutyfree" / "meter"


def attrs_project(cache: Path | None = None) -> Project:
    """The attrs library with our bug in it. Fetched and built at the first call, from the cache after that."""
    root = (cache or cache_directory()) / f"attrs-24.2.0-r{_RECIPE}"
    if not root.exists():
        with _under_construction(root) as draft:
            _build_site(draft / "site")
            _build_attrs(draft)
    head = _git(root / "tree", "rev-parse", "HEAD").strip()
    if head != bug.BUGGY_COMMIT:
        raise DriverError(f"{root} holds commit {head}, not {bug.BUGGY_COMMIT}; remove that directory to rebuild it")
    return Project(
        name="attrs 24.2.0",
        repository=root / "served" / "attrs.git",
        tree=root / "tree",
        site=root / "site",
        commit=head,
        subject=bug.SUBJECT,
        patch=bug.PATCH,
        reproduce=f"{PYTHON} -c '{bug.REPRODUCE}'",
        test=f"{PYTHON} -m pytest -q {bug.TEST_PATH}",
        test_says=b"2 passed",
        files_answer=_files_answer(root / "tree"),
    )


def upstream_project(url: str, commit: str, *, patch: bytes, test: str, cache: Path | None = None) -> Project:
    """Any repository at any commit: `test` must fail there, and pass once `patch` is applied."""
    root = (cache or cache_directory()) / f"upstream-{hashlib.sha256(f'{url} {commit}'.encode()).hexdigest()[:16]}"
    if not root.exists():
        with _under_construction(root) as draft:
            _build_site(draft / "site")
            served = draft / "served" / "upstream.git"
            _git(draft, "clone", "-q", "--bare", url, str(served))
            _git(draft, "clone", "-q", str(served), str(draft / "tree"))
            _git(draft / "tree", "checkout", "-q", commit)
    head = _git(root / "tree", "rev-parse", "HEAD").strip()
    if not head.startswith(commit):
        raise Misuse(f"{commit} is not a commit id of {url}; it names {head}", field="commit")
    return Project(
        name=url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git"),
        repository=root / "served" / "upstream.git",
        tree=root / "tree",
        site=root / "site",
        commit=head,
        subject=_git(root / "tree", "log", "-1", "--format=%s").strip(),
        patch=patch,
        reproduce=f"{{ {test} ; }} && exit 0 || exit 1",
        test=test,
        test_says=b"",
        files_answer=_files_answer(root / "tree"),
    )


def _build_site(target: Path) -> None:
    _pip(["install", "--target", str(target), "--only-binary", ":all:", "--no-compile"], SITE)
    shutil.rmtree(target / "bin", ignore_errors=True)
    if Path(PYTHON).exists():
        # Valid whatever the files' times are after the upload, and not checked again at each import.
        _check_run([PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(target)])


def _build_attrs(draft: Path) -> None:
    downloads = draft / "downloads"
    _pip(["download", "--no-binary", "attrs", "--dest", str(downloads)], [ATTRS])
    unpack(downloads / "attrs-24.2.0.tar.gz", draft)
    tree = draft / "tree"
    (draft / "attrs-24.2.0").rename(tree)
    _git(tree, "init", "-q", "--initial-branch=main")
    _commit(tree, "Import attrs 24.2.0", day=1)
    (tree / bug.TEST_PATH).write_text(bug.TEST, encoding="utf-8")
    source = tree / bug.SOURCE_PATH
    source.write_text(bug.inject(source.read_text(encoding="utf-8")), encoding="utf-8")
    _commit(tree, bug.SUBJECT, day=2)
    _git(tree, "gc", "-q", "--prune=now")
    _git(draft, "clone", "-q", "--bare", str(tree), str(draft / "served" / "attrs.git"))
    shutil.rmtree(downloads)


def unpack(source: Path, target: Path) -> None:
    """Unpack an archive whose hash was checked, as this user's files.

    Python 3.11 before 3.11.4 has no filters and would, as root, give the files to the owners that the archive names.
    """
    with tarfile.open(source) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        members = archive.getmembers()
        for member in members:
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        archive.extractall(target, members)  # noqa: S202 - filtered where Python can, and of a known hash


def _commit(tree: Path, message: str, *, day: int) -> None:
    """Commit everything, with dates and names that never change: the ids must not either."""
    _git(tree, "add", "--all", "--force")
    date = f"2024-08-0{day}T00:00:00+0000"
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _WHO.items()}
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    _git(tree, "commit", "-q", "-m", message, env={**who, **dates})


def _files_answer(tree: Path) -> bytes:
    return b"%d\n" % len(_git(tree, "ls-files").splitlines())


@contextmanager
def _under_construction(root: Path) -> Iterator[Path]:
    """A draft directory that becomes `root` when the block succeeds, and disappears when it does not."""
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=root.parent))
    try:
        yield draft
        draft.chmod(0o755)
        draft.rename(root)
    finally:
        if draft.exists():
            shutil.rmtree(draft)


def _pip(arguments: list[str], requirements: tuple[str, ...] | list[str]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements) + "\n")
        file.flush()
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", arguments[0], "--no-deps"]
        command += ["--require-hashes", *arguments[1:], "-r", file.name]
        try:
            _check_run(command)
        except DriverError as error:
            raise Unavailable(
                f"the workload's material could not be fetched: {error.message}",
                enable=f"{sys.executable} -m ensurepip (if pip is missing), or give pip a reachable package index",
            ) from error


def _git(directory: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    isolated = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    return _check_run(["git", *arguments], cwd=directory, env={**os.environ, **isolated, **(env or {})})


def _check_run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is not installed", enable=f"apt-get install -y {command[0]}") from error
    if done.returncode:
        step = " ".join(command[:4])
        raise DriverError(f"{step} ... exited with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
