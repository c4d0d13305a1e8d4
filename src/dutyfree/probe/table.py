"""Probes 123 to 126, 130 and 142: tables of the whole machine, of which one sandbox must not take all.

While the culprit holds all it could get, an ordinary user of the host, a sibling and a new sandbox must get theirs.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError
from dutyfree.core.spec import Spec
from dutyfree.probe.exhaustion import judged
from dutyfree.probe.scene import need, shares_kernel, stage
from dutyfree.probe.strain import while_full
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_NOBODY = 65_534
_STOP_BYTES = 4 << 30
_DIRTY_BYTES = 16 << 20
_CACHESTAT = 451
_LIBC = ctypes.CDLL(None, use_errno=True)

CONTEXT = """
import ctypes, platform
libc, context = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong(0)
made = libc.syscall(0 if platform.machine() == "aarch64" else 206, 1, ctypes.byref(context))
if made != 0: raise OSError(ctypes.get_errno(), "io_setup")
"""
TERMINAL = "import os; os.openpty()"
FILES = "import os; [os.open('/dev/null', os.O_RDONLY) for _ in range(256)]"
FLOW = """
import socket, struct
asked = b"\\0" * 15 + b"\\1" + struct.pack("!I", 0) + struct.pack("BBHHHI", 0, 1, 1, 6, 60, 0)
socket.socket(10, 2).setsockopt(41, 32, asked)
"""


def on_the_host(code: str) -> Callable[[], str | None]:
    """Python that an ordinary user of the host runs; why it failed."""

    def check() -> str | None:
        user = _NOBODY if os.geteuid() == 0 else None
        # Debian's own: an ordinary user may not be able to read the one that runs us.
        python = "/usr/bin/python3" if user and os.access("/usr/bin/python3", os.X_OK) else sys.executable
        words = [python, "-I", "-c", code]
        try:
            subprocess.run(words, user=user, group=user, cwd="/", capture_output=True, text=True, check=True)
        except OSError as error:
            return f"a program of the host: {error.strerror}"
        except subprocess.CalledProcessError as error:
            return f"an ordinary user of the host: {error.stderr.strip().splitlines()[-1]}"
        return None

    return check


async def _beside(substrate: Substrate, sibling: Sandbox, code: str | None) -> str | None:
    """Say why a sibling that had the object before, or a new sandbox, does not get it now."""
    if code and not (said := await sibling.run(["python3", "-I", "-c", code], timeout_s=30)).ok:
        return f"a sibling: {said.ending} {said.stderr.decode(errors='replace').strip().splitlines()[-1:]}"
    try:
        async with substrate.create(Spec(network=sibling.network)) as later:
            outcome = await later.run(["true"], timeout_s=30)
    except (DutyfreeError, OSError) as error:
        return f"a new sandbox: {error}"
    return None if outcome.ok else f"a new sandbox does not work: {outcome.ending}"


def _holding(
    ways: list[str], code: str, *, processes: int = 2, seconds: float = 10.0, pids: int = 256
) -> Callable[[Substrate], Awaitable[Verdict]]:
    async def run(substrate: Substrate) -> Verdict:
        need(substrate.capabilities.stream, "commands cannot be left running here")
        need(on_the_host(code)() is None, "the host itself has none to give, or does not offer it")
        limits = {"pids": pids} if "pids" in substrate.capabilities.limits else {}
        async with stage(substrate, **limits) as culprit, stage(substrate) as sibling:
            has = (await sibling.box.run(["python3", "-I", "-c", code], timeout_s=30)).ok

            async def check() -> str | None:
                return on_the_host(code)() or await _beside(substrate, sibling.box, code if has else None)

            wanted = {"what": ways, "most_bytes": _STOP_BYTES, "seconds": seconds, "processes": processes}
            fault, said = await while_full(culprit, "hoard", check, **wanted)
            actions = 1 if await sibling.alive() else -1
        return judged(fault, actions, f"the host and a new sandbox had enough beside {said}")

    return run


def _unwritten(fd: int) -> int:
    """Count the pages of a file that wait to be written."""
    asked, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    need(_LIBC.syscall(_CACHESTAT, fd, asked, found, 0) == 0, "the host's kernel has no cachestat (Linux 6.5)")
    return found[1] + found[2]


async def filters(substrate: Substrate) -> Verdict:
    """124: compiled filters, for which the machine has one bound; a machine was lost when thousands were freed at once."""
    async with stage(substrate) as box:
        said = (await box.attempt("hoard", what=["filters"], most_bytes=_STOP_BYTES, seconds=10)).said
        need(bool(said), "the attempt did not report")
        if said["steps"] and shares_kernel(substrate):
            return broke(f"{said['steps']} filters were compiled in the host's kernel, of bpf_jit_limit")
        return held(f"{said['steps']} filters in a kernel of its own" if said["steps"] else said["why"])


async def flush(substrate: Substrate) -> Verdict:
    """130: what others wrote is written out when they want it, and not when somebody inside asks for that."""
    for place in ("/usr/local", "/var/tmp", tempfile.gettempdir()):  # noqa: S108 - the first that is on the disk of /usr
        if os.access(place, os.W_OK) and os.stat(place).st_dev == os.stat("/usr").st_dev:
            break
    with tempfile.TemporaryFile(dir=place) as file:
        async with stage(substrate) as box:
            file.write(os.urandom(_DIRTY_BYTES))
            file.flush()
            before = _unwritten(file.fileno())
            need(before > 0, f"nothing waits to be written in {place}")
            said = (await box.attempt("flush", timeout_s=60)).said
            after = _unwritten(file.fileno())
    need(bool(said), "the attempt did not report")
    if after < before // 2:
        return broke(f"of {before} pages of the host that waited to be written {after} still do")
    return held(f"{said['done']} of {said['asked']} calls were answered, and the host's pages still wait")


PROBES = (
    Probe(id=123, name="aio-contexts", group="exhaustion", run=_holding(["contexts"], CONTEXT)),
    Probe(id=124, name="filters-of-sockets", group="exhaustion", run=filters),
    Probe(id=125, name="terminals", group="exhaustion", run=_holding(["pseudo terminals"], TERMINAL)),
    Probe(id=126, name="open-files", group="exhaustion", run=_holding(["files"], FILES, processes=250, seconds=20)),
    Probe(id=130, name="host-disks-flushed", group="interference", run=flush),
    Probe(id=142, name="flow-labels", group="exhaustion", run=_holding(["flows"], FLOW)),
)
