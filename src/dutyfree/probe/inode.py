"""Probes 135 to 138: programs and libraries of the host that are shown inside are not the host's own inodes.

Where a sandbox sees files of the host, a watch, a lock or a lease on them must not reach whoever uses them outside, and
root inside must not read what only root may read.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.contract import Substrate
from dutyfree.probe.canary import Canary
from dutyfree.probe.scene import Attempt, Stage, need, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_SHOWN = "/usr/share"
_PROGRAMS = ("factor", "tsort", "cksum", "sum", "expr")
"""Harmless ones that nothing starts by itself."""


@contextmanager
def _planted(mode: int) -> Iterator[Canary]:
    """A file of the host where sandboxes may be shown the host's files."""
    need(os.access(_SHOWN, os.W_OK), f"only who may write to {_SHOWN} can plant a file there: run as root")
    directory = Path(tempfile.mkdtemp(dir=_SHOWN, prefix="canary-"))
    secret = secrets.token_hex(24).encode()
    try:
        directory.chmod(0o755)
        path = directory / "secret"
        path.write_bytes(secret + b"\n")
        path.chmod(mode)
        yield Canary(directory=directory, path=path, secret=secret)
    finally:
        shutil.rmtree(directory)


@dataclass(slots=True)
class _Hold:
    said: Attempt | None = None


@asynccontextmanager
async def _held_inside(box: Stage, what: str, path: str) -> AsyncIterator[_Hold]:
    """Meanwhile something inside holds on to the path; afterwards there is what it says."""
    word, hold = secrets.token_hex(8), _Hold()
    ready, done = f"/tmp/{word}-ready", f"/tmp/{word}-done"  # noqa: S108 (inside the sandbox)
    holding = asyncio.ensure_future(box.attempt("hold", what=what, path=path, ready=ready, done=done))
    try:
        while not holding.done() and not (await box.box.run(["test", "-e", ready])).ok:
            pass
        yield hold
    finally:
        await box.box.write(done, b"")
        hold.said = await holding


async def root_only(substrate: Substrate) -> Verdict:
    """135: a file of the host's root, read by root inside."""
    with _planted(0o600) as canary:
        async with stage(substrate) as box:
            tried = await box.box.run(["cat", str(canary.path)])
    return broke("root inside reads what only root may read") if canary.secret in tried.stdout else held("not read")


async def watch(substrate: Substrate) -> Verdict:
    """136: a watch that tells which programs the host and siblings start."""
    name = next((name for name in _PROGRAMS if Path(f"/usr/bin/{name}").exists()), None)
    need(name is not None, f"the machine has none of {', '.join(_PROGRAMS)}")
    program = f"/usr/bin/{name}"
    async with stage(substrate) as box, stage(substrate) as sibling:
        seen = []
        for who in ("the host", "a sibling"):
            async with _held_inside(box, "watch", "/usr/bin") as hold:
                if who == "the host":
                    started = await asyncio.create_subprocess_exec(
                        program, "--version", stdout=asyncio.subprocess.DEVNULL
                    )
                    await started.wait()
                else:
                    await sibling.box.run([program, "--version"])
            if hold.said and name in hold.said.said.get("seen", []):
                seen.append(who)
    return broke(f"a watch tells what {' and '.join(seen)} started") if seen else held("a watch tells nothing")


async def lock(substrate: Substrate) -> Verdict:
    """137: a lock on a file that the host uses too."""
    with _planted(0o644) as canary, canary.path.open("rb") as file:
        async with stage(substrate) as box, _held_inside(box, "lock", str(canary.path)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return broke("a lock taken inside keeps the host from taking it")
    return held("the host can take the lock")


async def lease(substrate: Substrate) -> Verdict:
    """138: a lease, which makes the host's writers wait."""
    with _planted(0o644) as canary:
        async with stage(substrate) as box, _held_inside(box, "lease", str(canary.path)):
            try:
                os.close(os.open(canary.path, os.O_WRONLY | os.O_NONBLOCK))
            except BlockingIOError:
                return broke("a lease taken inside makes a writer on the host wait")
    return held("the host can write")


PROBES = (
    Probe(id=135, name="host-root-only-files", group="escape", run=root_only),
    Probe(id=136, name="host-programs-watched", group="escape", run=watch),
    Probe(id=137, name="host-files-locked", group="escape", run=lock),
    Probe(id=138, name="host-writers-held-up", group="escape", run=lease),
)
