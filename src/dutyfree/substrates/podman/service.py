"""A podman API service of our own, for a machine where none is up: one child process, gone with its owner.

Its images and containers are kept apart from the user's own podman. It is told which runtime to use and not to raise
any resource limit, since crun refuses the hybrid cgroup layout and raising needs CAP_SYS_RESOURCE.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from dutyfree.core.errors import Unavailable
from dutyfree.core.pending import finish
from dutyfree.substrates.engine.options import ask
from dutyfree.substrates.image.store import Store
from dutyfree.substrates.poll import poll
from dutyfree.substrates.sweep import is_orphan, owner_mark

ENABLE = "make substrates"
START_S = 60.0
CLEANERS_S = 10.0

CONFIGURATION = """\
[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
exit_command_delay = 10
"""
"""The last line: by default every exec of the API leaves a conmon behind for five minutes."""


class Service:
    """Made by `start`; `close` ends it."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path) -> None:
        self.socket = str(home / "podman.sock")
        self._process = process
        self._home = home
        self._lock = os.open(storage() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        """Shared by all services on the same storage."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    @classmethod
    async def start(cls, runtime: str | None) -> Service:
        """Start one and wait until it answers; `Unavailable` with its last words if it does not."""
        program = shutil.which("podman")
        if program is None:
            raise Unavailable("podman is not installed", enable=ENABLE, driver="podman")
        _sweep()
        home = Path(tempfile.mkdtemp(prefix=f"dutyfree-podman-{os.getpid()}-"))
        (home / "owner").write_text(owner_mark())
        service = cls(_launch(program, home, runtime or runtime_program()), home)
        try:
            await service._answers()
        except BaseException:
            await finish(service.close())
            raise
        return service

    async def close(self) -> None:
        """End it. Containers are the substrate's to end before."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(self._tidy)

    def _tidy(self) -> None:
        """Delete what is the service's own; the last one of all also takes back what podman left on the machine."""
        if self._lock < 0:
            return
        shutil.rmtree(self._home)
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end_monitors()
            # Storage is bind-mounted on itself, and the cgroup above all containers stays when they are gone.
            subprocess.run(["umount", "--quiet", str(storage() / "storage/overlay")], check=False, capture_output=True)
            for group in (
                *Path("/sys/fs/cgroup").glob("libpod_parent"),
                *Path("/sys/fs/cgroup").glob("*/libpod_parent"),
            ):
                _remove_empty(group)
        os.close(self._lock)
        self._lock = -1

    async def _answers(self) -> None:
        async def look() -> bool | None:
            if self._process.poll() is not None:
                return False
            return True if isinstance(await asyncio.to_thread(ask, self.socket, "/version"), dict) else None

        if not await poll(look, deadline_s=START_S):
            said = (self._home / "log").read_text(errors="replace").strip()
            raise Unavailable(f"podman's service did not start: {said[-500:]}", enable=ENABLE, driver="podman")


def _sweep() -> None:
    """Delete what services of dead owners left; the services themselves died with them."""
    for path in Path(tempfile.gettempdir()).glob("dutyfree-podman-*/owner"):
        with suppress(OSError):
            if is_orphan(path.read_text()):
                shutil.rmtree(path.parent)


def _end_monitors() -> None:
    """End conmons that outlive their execs, and wait for clean-ups under way: those mount the storage again meanwhile.

    Called by the last service on this storage, when no container is left in it.
    """
    mark = str(storage() / "storage").encode()
    end_s = time.monotonic() + CLEANERS_S
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            if mark not in words:
                continue
            fd = os.pidfd_open(int(entry.name))
            try:
                if words[0].endswith(b"conmon"):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], max(0.0, end_s - time.monotonic()))
            finally:
                os.close(fd)


def _remove_empty(group: Path) -> None:
    """Remove a cgroup and those below it, as far as nobody is in them."""
    with suppress(OSError):
        for below in group.iterdir():
            if below.is_dir():
                _remove_empty(below)
        group.rmdir()


def runtime_program() -> str | None:
    """Runc if there is one: crun does not know the hybrid cgroup layout."""
    return shutil.which("runc") or shutil.which("runc", path="/usr/sbin:/sbin")


def storage() -> Path:
    """Where images stay from one service to the next."""
    return Store.default().root / "podman"


def _launch(program: str, home: Path, runtime: str | None) -> subprocess.Popen[bytes]:
    (home / "containers.conf").write_text(CONFIGURATION)
    kept = storage()
    kept.mkdir(parents=True, exist_ok=True)
    command = [
        "setpriv", "--pdeathsig", "TERM", program, "--root", str(kept / "storage"), "--runroot", str(kept / "run"),
        "--tmpdir", str(kept / "tmp"), *(["--runtime", runtime] if runtime else []),
        "system", "service", "--time=0", f"unix://{home}/podman.sock",
    ]  # fmt: skip
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "CONTAINERS_CONF": str(home / "containers.conf")},
            start_new_session=True,
        )
