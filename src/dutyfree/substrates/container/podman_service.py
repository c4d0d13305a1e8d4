"""A podman API service of our own, for a machine where none is up: one child process, gone with its owner.

Its images and containers are kept apart from the user's own podman. It is told which runtime to use and not to raise
any resource limit, since crun refuses the hybrid cgroup layout and raising needs CAP_SYS_RESOURCE. Without root it is
also told to use the kernel's overlay: left to itself podman copies the whole image for each container.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dutyfree.core.checkout import make
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.core.pending import finish
from dutyfree.driver.agent import agent_program
from dutyfree.driver.owner import is_orphan, owner_mark
from dutyfree.driver.program import poll
from dutyfree.image.store import Store
from dutyfree.substrates.container.engine_http import ask

ENABLE = make("substrates", "apt-get install -y podman")
START_S = 60.0
CLEANERS_S = 10.0
_STEP_S = 0.05
_PREFIX = "dutyfree-podman-"
_DRIVER = "podman"
_IDS = "100000-165535"
_PAUSES = ("podman", "catatonit")

CONFIGURATION = """\
[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
exit_command_delay = 10
"""
"""The last line: by default every exec of the API leaves a conmon behind for five minutes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Made by `find`."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def find(cls, name: str | None) -> Account:
        """The user of that name, or whoever we are."""
        try:
            entry = pwd.getpwuid(os.geteuid()) if name is None else pwd.getpwnam(name)
        except KeyError as error:
            if name is not None:
                raise Misuse(f"there is no user {name!r}", field="user", driver=_DRIVER) from error
            what = f"uid {os.geteuid()} has no name and no home in /etc/passwd, which podman needs"
            raise Unavailable(
                what, enable=f"useradd --uid {os.geteuid()} --create-home NAME", driver=_DRIVER
            ) from error
        found = cls(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, home=entry.pw_dir)
        if found.is_other and os.geteuid() != 0:
            raise Misuse(f"only root runs a service of {name!r}", field="user", driver=_DRIVER)
        if found.rootless:
            found.check()
        return found

    @property
    def rootless(self) -> bool:
        """Its containers have no root of the machine behind them."""
        return self.uid != 0

    @property
    def is_other(self) -> bool:
        """It is not us."""
        return self.uid != os.geteuid()

    @property
    def storage(self) -> Path:
        """Directory in which images outlive each service. Each user has one, whose files nobody else may remove."""
        return Store.default().root / (f"podman-{self.name}" if self.is_other else "podman")

    @property
    def lock(self) -> Path:
        """Shared by all services on that storage; never in a directory of somebody else."""
        return self.storage.with_suffix(".lock") if self.is_other else self.storage / "lock"

    @property
    def prefix(self) -> list[str]:
        """Starts a program as this user, which dies with us."""
        become = [f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"] if self.is_other else []
        return ["setpriv", *become, "--pdeathsig", "TERM"]

    def environment(self, runtime: Path) -> dict[str, str]:
        """Ours, or what a login of theirs would have; with a runtime directory that is the service's own."""
        if not self.rootless:
            return dict(os.environ)
        path = os.environ.get("PATH", os.defpath)
        given = {"HOME": self.home, "PATH": f"{path}:/usr/sbin:/sbin"} if self.is_other else dict(os.environ)
        return {**given, "XDG_RUNTIME_DIR": str(runtime)}

    def give(self, *paths: Path) -> None:
        """Let them have what we made."""
        for path in paths if self.is_other else ():
            os.chown(path, self.uid, self.gid)

    def check(self) -> None:
        """`Unavailable` with the command for what is missing."""
        if shutil.which("newuidmap") is None:
            raise Unavailable("podman without root needs newuidmap", enable="apt-get install -y uidmap", driver=_DRIVER)
        if not all(self._has_range(path) for path in ("/etc/subuid", "/etc/subgid")):
            raise Unavailable(
                f"{self.name} has no subordinate ids",
                enable=f"usermod --add-subuids {_IDS} --add-subgids {_IDS} {self.name}",
                driver=_DRIVER,
            )
        program = agent_program(_DRIVER).resolve()
        if self.is_other and not all(one.stat().st_mode & 0o001 for one in (program, *program.parents)):
            raise Unavailable(f"{self.name} cannot read {program}", enable="move the package elsewhere", driver=_DRIVER)

    def _has_range(self, path: str) -> bool:
        try:
            lines = Path(path).read_text().splitlines()
        except FileNotFoundError:
            return False
        return any(line.partition(":")[0] in (self.name, str(self.uid)) for line in lines)


class Service:
    """Made by `start`; `close` ends it."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, account: Account) -> None:
        self.socket = str(home / "podman.sock")
        self._process = process
        self._home = home
        self._account = account
        self._lock = os.open(account.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        """Shared by all services on the same storage."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    @classmethod
    async def start(cls, runtime: str | None, user: str | None = None) -> Service:
        """Start one and wait until it answers; `Unavailable` with its last words if it does not."""
        program = shutil.which("podman")
        if program is None:
            raise Unavailable("podman is not installed", enable=ENABLE, driver="podman")
        account = Account.find(user)
        await asyncio.to_thread(_sweep)
        home = Path(tempfile.gettempdir(), f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
        _mark(home).write_text(owner_mark())
        home.mkdir(0o700)
        service = cls(_launch(program, home, runtime or runtime_program(), account), home, account)
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
        _delete(self._home)
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end_monitors(self._account.storage)
            if self._account.rootless:
                _end_pause(self._account)
            else:
                self._take_back()
        os.close(self._lock)
        self._lock = -1

    def _take_back(self) -> None:
        """Storage is bind-mounted on itself, and the cgroup above all containers stays when they are gone."""
        overlay = self._account.storage / "storage/overlay"
        subprocess.run(["umount", "--quiet", str(overlay)], check=False, capture_output=True)
        for group in (*Path("/sys/fs/cgroup").glob("libpod_parent"), *Path("/sys/fs/cgroup").glob("*/libpod_parent")):
            _remove_empty(group)

    async def _answers(self) -> None:
        async def look() -> bool | None:
            if self._process.poll() is not None:
                return False
            return True if isinstance(await asyncio.to_thread(ask, self.socket, "/version"), dict) else None

        if not await poll(look, deadline_s=START_S):
            said = (self._home / "log").read_text(errors="replace").strip()
            raise Unavailable(f"podman's service did not start: {said[-500:]}", enable=ENABLE, driver="podman")


def _sweep() -> None:
    """Delete what services of dead owners left; the services themselves died with them, or nearly."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        home = path.with_suffix("")
        with suppress(OSError):
            if not home.is_symlink() and _is_abandoned(home):
                _delete(home)


def _mark(home: Path) -> Path:
    """File that names the owner. It lies beside the directory: inside, podman's user could change or delete it."""
    return home.with_suffix(".owner")


def _is_abandoned(home: Path) -> bool:
    try:
        return is_orphan(_mark(home).read_text())
    except FileNotFoundError:  # a clean-up that came late has put it back
        owner = home.name.removeprefix(_PREFIX).partition("-")[0]
        return owner.isdecimal() and not Path("/proc", owner).exists()


def _delete(home: Path) -> None:
    """End what serves there, and delete all.

    Clean-ups of podman's that are under way put back what they keep there: they are waited for.

    What is left after that has its mark still, and is the next sweep's.
    """
    _end_server(home)
    end_s = time.monotonic() + CLEANERS_S
    while home.exists() or _cleans(home):
        shutil.rmtree(home, ignore_errors=True)
        if time.monotonic() > end_s:
            return
        time.sleep(_STEP_S)
    _mark(home).unlink(missing_ok=True)


def _cleans(home: Path) -> bool:
    """Something that podman started works there.

    A conmon does not: it waits for its container, whose end is the substrate's affair.
    """
    words = [words for words, _ in _processes(f"XDG_RUNTIME_DIR={home}/run", "environ")]
    return any(b"runc" in one[0] or (b"cleanup" in one and not one[0].endswith(b"conmon")) for one in words)


def _end_server(home: Path) -> None:
    """End what still serves there: without root podman is two processes, and the first may leave without the second."""
    for _, fd in _processes(f"unix://{home}/podman.sock"):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGTERM)
            if not select.select([fd], [], [], CLEANERS_S)[0]:
                signal.pidfd_send_signal(fd, signal.SIGKILL)


def _end_monitors(kept: Path) -> None:
    """End conmons that outlive their execs, and wait for clean-ups under way: those mount the storage again meanwhile.

    Called by the last service on this storage, when no container is left in it.
    """
    end_s = time.monotonic() + CLEANERS_S
    for words, fd in _processes(str(kept / "storage")):
        if words[0].endswith(b"conmon"):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        select.select([fd], [], [], max(0.0, end_s - time.monotonic()))


def _processes(word: str, among: Literal["cmdline", "environ"] = "cmdline") -> Iterator[tuple[list[bytes], int]]:
    """Those that have `word` there: the arguments and a descriptor of each, closed when the next is asked for."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if not entry.name.isdecimal() or word.encode() not in (entry / among).read_bytes().split(b"\0"):
                continue
            fd = os.pidfd_open(int(entry.name))
            try:
                yield (entry / "cmdline").read_bytes().split(b"\0"), fd
            finally:
                os.close(fd)


def _end_pause(account: Account) -> None:
    """End the process by which podman without root keeps its namespaces, with the mounts in them, from one call to the next.

    The number is theirs to write, so it is believed only of a process of that user.
    """
    with suppress(OSError, ValueError, StopIteration):
        pid = int((account.storage / "tmp/pause.pid").read_text())
        fd = os.pidfd_open(pid)
        try:
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            uid = int(next(line.split()[1] for line in status if line.startswith("Uid:")))
            if uid == account.uid and status[0].split()[1] in _PAUSES:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], CLEANERS_S)
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
    """Directory in which our images outlive each service."""
    return Account.find(None).storage


def _launch(program: str, home: Path, runtime: str | None, account: Account) -> subprocess.Popen[bytes]:
    (home / "containers.conf").write_text(CONFIGURATION)
    (home / "run").mkdir(mode=0o700)
    kept = account.storage
    kept.mkdir(parents=True, exist_ok=True)
    command = [
        *account.prefix, program, "--root", str(kept / "storage"), "--runroot", str(kept / "run"),
        "--tmpdir", str(kept / "tmp"), *(["--runtime", runtime] if runtime else []),
        *(["--storage-driver", "overlay"] if account.rootless else []),
        "system", "service", "--time=0", f"unix://{home}/podman.sock",
    ]  # fmt: skip
    with (home / "log").open("wb") as log:
        # From here on nothing is opened by a name in these directories: it could lead anywhere.
        account.give(home, home / "run", kept)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env={**account.environment(home / "run"), "CONTAINERS_CONF": str(home / "containers.conf")},
            start_new_session=True,
        )
