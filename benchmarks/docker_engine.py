"""A docker engine to measure: the one that answers, else a private one that leaves nothing behind.

The private engine has its own data, state, socket, process file and cgroup, all named after this run, no bridge and no
firewall rules, so it neither sees nor disturbs another engine. It is ended by its process number; then its shims, mounts
and cgroups are cleared away, by its own directory's name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.interleave import Missing

INSTALL = "apt-get install -y docker.io"
START_S = 60.0
_SHARED = ("/run/containerd/s", "/run/containerd", "/run/docker/plugins", "/run/docker")
"""Directories that engine and shims make whatever they are told; inner ones first."""
_PREFIX = "dfspeed-"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """How to speak to a running engine."""

    client: tuple[str, ...]
    """The command line up to the subcommand."""
    version: str
    private: bool

    def call(self, *arguments: str, stdin: Path | None = None) -> str:
        """Run a subcommand to its end; gives what it printed."""
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(stdin.open("rb")) if stdin else subprocess.DEVNULL
            done = subprocess.run([*self.client, *arguments], capture_output=True, stdin=source, check=False)
        if done.returncode != 0:
            raise Missing(f"docker {arguments[0]}: {done.stderr.decode(errors='replace').strip()[-300:]}", INSTALL)
        return done.stdout.decode().strip()


@contextmanager
def engine() -> Iterator[Engine]:
    """The engine that answers, else a private one for the length of the block."""
    docker = shutil.which("docker", path=_SYSTEM_PATH)
    if docker is None:
        raise Missing("the docker client is not installed", INSTALL)
    if (version := _version((docker,))) is not None:
        yield Engine(client=(docker,), version=version, private=False)
        return
    dockerd = shutil.which("dockerd", path=_SYSTEM_PATH)
    if dockerd is None:
        raise Missing("no docker engine answers, and dockerd is not installed", INSTALL)
    if os.geteuid() != 0:
        raise Missing("no docker engine answers, and only root can start one", "systemctl start docker")
    with _private(docker, dockerd) as found:
        yield found


@contextmanager
def _private(docker: str, dockerd: str) -> Iterator[Engine]:
    _sweep()
    # Short, because a unix socket's path ends at 107 bytes and the engine adds its own names.
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))
    absent = [path for path in _SHARED if not Path(path).exists()]
    client = (docker, "--host", f"unix://{place}/s", "--config", f"{place}/config")
    try:
        (place / "none.json").write_text("{}")
        with (place / "log").open("wb") as log:
            daemon = subprocess.Popen(
                _daemon_line(dockerd, place), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={"PATH": _SYSTEM_PATH, "HOME": str(place)}, start_new_session=True,
            )  # fmt: skip
        try:
            yield Engine(client=client, version=_answering(daemon, client, place), private=True)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
    finally:
        _clear(place)
        for path in absent:
            with contextlib.suppress(OSError):  # in use by somebody else's engine by now, or never made
                Path(path).rmdir()


def _daemon_line(dockerd: str, place: Path) -> list[str]:
    # The engine must not outlive this process, whatever kills that.
    setpriv = shutil.which("setpriv", path=_SYSTEM_PATH)
    return [
        *([setpriv, "--pdeathsig", "TERM"] if setpriv else []), dockerd, "--host", f"unix://{place}/s", "--data-root", f"{place}/data", "--exec-root", f"{place}/exec",
        "--pidfile", f"{place}/pid", "--config-file", f"{place}/none.json", "--bridge=none", "--iptables=false",
        "--ip6tables=false", "--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/{place.name}",
    ]  # fmt: skip


def _answering(daemon: subprocess.Popen[bytes], client: tuple[str, ...], place: Path) -> str:
    end_s = time.monotonic() + START_S
    while (version := _version(client)) is None:
        if daemon.poll() is not None or time.monotonic() > end_s:
            last = (place / "log").read_text(errors="replace").strip().splitlines()[-1:]
            raise Missing(f"a private dockerd did not start: {' '.join(last)[-300:]}", "systemctl start docker")
        time.sleep(0.1)
    return version


def _version(client: tuple[str, ...]) -> str | None:
    line = [*client, "version", "--format", "{{.Server.Version}}"]
    done = subprocess.run(line, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.stdout.decode().strip() or None if done.returncode == 0 else None


def _sweep() -> None:
    """Clear after runs that were killed: our own user's directories, whose process is no more."""
    for place in Path("/tmp").glob(f"{_PREFIX}[0-9]*-*"):
        owner = place.name.removeprefix(_PREFIX).partition("-")[0]
        ours = place.lstat().st_uid == os.geteuid() and not place.is_symlink()
        if ours and owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _clear(place)


def _clear(place: Path) -> None:
    """End what the engine started and left, then remove its mounts, cgroups and files. Matches our directory only."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and f"{place}/".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        point = line.split(" ", 5)[4]
        if point.startswith(f"{place}/"):
            subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
    for top in Path("/sys/fs/cgroup").rglob(place.name):
        for path in sorted([top, *(p for p in top.rglob("*") if p.is_dir())], reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
    shutil.rmtree(place, ignore_errors=True)
