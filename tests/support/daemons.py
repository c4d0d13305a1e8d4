"""Engines for tests, and the common rootfs in them: those of the machine, or private ones that are gone afterwards.

    docker_engine, podman_engine, bench  fixtures; import them into a conftest
    provide_bench()                      before the tests: builds what the fixture `bench` asks for
    with docker_socket() as path: …      the machine's engine if one answers, else a private one

A private Docker daemon touches neither bridges nor packet filters. It is no child of ours: what it starts and ends
meanwhile is its own affair, and not a leak of a test.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dutyfree.core.errors import DutyfreeError, Unavailable
from dutyfree.image.bench import build
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Store
from dutyfree.substrates.container.docker import driver as docker
from dutyfree.substrates.container.engine_http import ask
from dutyfree.substrates.container.podman import driver as podman
from dutyfree.substrates.container.podman_service import Service
from dutyfree.substrates.oci.program import find_program

VARIABLE = "DUTYFREE_TEST_CONTAINERS"
"""`0` leaves the container drivers out."""

PROGRAMS = ("dockerd", "podman", "runc", "runsc")
START_S = 60.0
_STEP_S = 0.02


def provide_bench() -> str | None:
    """Build the common rootfs unless it is there; why it cannot be had, or is not wanted. Takes a minute or two."""
    if os.environ.get(VARIABLE) == "0":
        return f"container drivers are left out by {VARIABLE}=0"
    if not any(map(find_program, PROGRAMS)) and not docker.probe().available:
        return "no container engine and no runtime is installed; enable: make substrates"
    store = Store.default()
    # Several workers may ask at once; the first one builds.
    lock = os.open(store.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(Unavailable):
            resolve("bench", store)
            return None
        build(store, progress=lambda _line: None)
    except DutyfreeError as error:
        return str(error)
    finally:
        os.close(lock)
        store.close()
    return None


@pytest.fixture(scope="session")
def bench() -> None:
    """The common rootfs, or a skip that says how it is made."""
    if os.environ.get(VARIABLE) == "0":
        pytest.skip(f"container drivers are left out by {VARIABLE}=0")
    need_bench()


def need_bench() -> None:
    """Skip where nobody has built it."""
    store = Store.default()
    try:
        resolve("bench", store)
    except Unavailable as error:
        pytest.skip(str(error))
    finally:
        store.close()


@pytest.fixture(scope="session")
def docker_engine(bench: None) -> Iterator[str]:
    """The socket of a Docker engine, or a skip that says how to have one."""
    try:
        with docker_socket() as path:
            yield path
            assert not (left := _ours(path)), f"containers left behind: {left}"
    except Missing as error:
        pytest.skip(str(error))


def _ours(path: str) -> list[str]:
    """The containers of an engine that name this process as their owner."""
    found = ask(path, "/containers/json?all=1")
    assert isinstance(found, list), found
    return [name for one in found for name in one["Names"] if f"-{os.getpid()}-" in name]


@pytest.fixture(scope="module")
def podman_engine(bench: None) -> Iterator[str]:
    """The socket of a podman service, or a skip that says how to have one. One for many tests: its start takes long."""
    found = podman.probe()
    if not found.available:
        pytest.skip(f"podman: {found.reason}; enable: {found.enable}")
    if found.reason.startswith("service at "):
        yield found.reason.removeprefix("service at ")
        return
    service = asyncio.run(Service.start(None))
    try:
        yield service.socket
    finally:
        asyncio.run(service.close())


class Missing(Exception):
    """The programs are not there; says the command that installs them."""


@contextmanager
def docker_socket() -> Iterator[str]:
    """The socket of an engine that answers."""
    found = docker.probe()
    if found.available:
        yield found.reason.partition("engine at ")[2].partition(",")[0]
        return
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        raise Missing(f"{found.reason}; enable: make substrates")
    home = Path(tempfile.mkdtemp(prefix=f"dutyfree-dockerd-{os.getpid()}-"))
    try:
        with _daemon(home) as path:
            yield path
    finally:
        shutil.rmtree(home)


@contextmanager
def _daemon(home: Path) -> Iterator[str]:
    path, group = home / "docker.sock", f"dockerd-{os.getpid()}-{os.urandom(3).hex()}"
    command = [
        "dockerd", f"--host=unix://{path}", f"--data-root={home}/data", f"--exec-root={home}/exec",
        f"--pidfile={home}/pid", "--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false",
        f"--cgroup-parent=/{group}",
    ]  # fmt: skip
    pid = detached(command, home / "log")
    try:
        wait_for(lambda: isinstance(ask(str(path), "/version"), dict), what="dockerd", log=home / "log")
        yield str(path)
    finally:
        end(pid)
        for mount in reversed([line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]):
            if mount.startswith(f"{home}/"):
                subprocess.run(["umount", "-l", mount], check=True)
        for controller in Path("/sys/fs/cgroup").glob(f"*/{group}"):
            controller.rmdir()
        with suppress(FileNotFoundError):
            Path(f"/sys/fs/cgroup/{group}").rmdir()


def detached(command: list[str], log: Path, env: dict[str, str] | None = None) -> int:
    """Start a daemon that is nobody's child; its pid."""
    script = '"$@" >"$0" 2>&1 </dev/null & echo $!'
    out = subprocess.run(
        ["sh", "-c", script, str(log), *command], check=True, capture_output=True, env=env, start_new_session=True
    )
    return int(out.stdout)


def wait_for(ready: Callable[[], bool], *, what: str, log: Path) -> None:
    """Until `ready()` is true; the daemon's own last words if that takes too long."""
    end_s = time.monotonic() + START_S
    while not ready():
        if time.monotonic() > end_s:
            raise RuntimeError(f"{what} did not start: {log.read_text()[-2000:]}")
        time.sleep(_STEP_S)


def end(pid: int) -> None:
    """Ask a daemon to end, and wait until it has."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGTERM)
        _await_exit(fd)
    finally:
        os.close(fd)


def _await_exit(pidfd: int) -> None:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if not poller.poll(START_S * 1000):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poller.poll()
