"""An ordinary user for tests, made for them and gone afterwards, with everything that was theirs: `rootless_user`."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dutyfree.core.errors import Unavailable
from dutyfree.substrates.container.podman_service import Account

_RANGES = ("/etc/subuid", "/etc/subgid")


@pytest.fixture(scope="session")
def rootless_user() -> Iterator[str]:
    """Their name; or a skip that says what podman without root needs."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user can only be made by root: sudo make test")
    if missing := [name for name in ("podman", "newuidmap", "useradd", "setpriv") if not shutil.which(name)]:
        pytest.skip(f"podman without root: there is no {' and no '.join(missing)}; enable: make substrates")
    absent = [path for path in _RANGES if not os.path.exists(path)]
    for path in absent:
        Path(path).touch(mode=0o644)  # useradd gives ranges where these are
    name = f"dutyfree-{os.getpid()}"
    home = tempfile.mkdtemp(prefix="ordinary-")
    subprocess.run(["useradd", "--home-dir", home, "--shell", "/bin/sh", name], check=True)
    uid = pwd.getpwnam(name).pw_uid
    os.chown(home, uid, uid)
    try:
        yield _fit(name)
    finally:
        _remove(name, uid, Path(home))
        for path in absent:
            os.unlink(path)


def _fit(name: str) -> str:
    try:
        return Account.find(name).name
    except Unavailable as error:
        pytest.skip(f"podman without root: {error}")


def _remove(name: str, uid: int, home: Path) -> None:
    """Processes first: what they hold open could not be removed."""
    kept = Account(name=name, uid=uid, gid=uid, home=str(home))
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and f"\nUid:\t{uid}\t" in (entry / "status").read_text():
                os.kill(int(entry.name), signal.SIGKILL)
    subprocess.run(["userdel", name], check=True)
    shutil.rmtree(home)
    shutil.rmtree(kept.storage, ignore_errors=True)
    kept.lock.unlink(missing_ok=True)
