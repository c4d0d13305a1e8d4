"""Probes 29 to 33: tricking the start of a sandbox or of a command into the host."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from dutyfree.core.contract import Substrate
from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unavailable
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.probe.canary import canary
from dutyfree.probe.scene import need, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_STARTS = 10_000
"""Starts during which a mount target is swapped, if they are done within `_SWAPPING_S`."""
_SWAPPING_S = 15.0
_SWAPPER = """
import ctypes, os, sys
swap = ctypes.CDLL(None).renameat2
first, second = map(os.fsencode, sys.argv[1:])
while swap(-100, first, -100, second, 2) == 0:  # RENAME_EXCHANGE: there is never nothing at either name
    pass
"""


async def odd_cwd(substrate: Substrate) -> Verdict:
    """29: a working directory named by a descriptor that the starter may have left open."""
    with canary() as bird:
        async with stage(substrate) as box:
            for number in range(24):
                command = box.command("relative-read", path=str(bird.path))
                try:
                    outcome = await box.box.run(command, cwd=f"/proc/self/fd/{number}", timeout_s=30)
                except Misuse:
                    continue
                if bird.secret in outcome.stdout:
                    return broke(f"descriptor {number} leads to the host's files")
        return held("no descriptor leads to the host's files")


async def overwrite_agent(substrate: Substrate) -> Verdict:
    """30: the programs we put into sandboxes, changed from inside."""
    programs = [path for path in Path(str(files("dutyfree"))).glob("_native/*") if path.is_file()]
    need(bool(programs), "the native programs are not built")
    before = [path.read_bytes() for path in programs]
    async with stage(substrate) as box:
        tried = await box.attempt("overwrite-agent")
        if [path.read_bytes() for path in programs] != before:
            return broke("a program of the host was overwritten")
        alive = await box.alive()
    return held(
        f"the programs are unchanged; opened for writing: {tried.said.get('opened', [])}; sandbox alive: {alive}"
    )


async def linked_image(substrate: Substrate) -> Verdict:
    """31: an image whose /proc, /dev or /sys leads elsewhere."""
    outcomes = []
    for name in ("proc", "dev", "sys"):
        with canary() as bird, tempfile.TemporaryDirectory(prefix="probe-image-") as top:
            root = Path(top)
            (root / name).symlink_to(bird.directory)
            outcomes.append(await _boots(substrate, root))
            if disturbed := bird.disturbed():
                return broke(f"/{name} of the image led the start to the host: {disturbed}")
    return held(f"starts: {', '.join(outcomes)}; nothing happened at the links' targets")


async def _boots(substrate: Substrate, image: Path) -> str:
    try:
        async with substrate.create(Spec(image=str(image))):
            return "accepted"
    except (DriverError, SandboxLost, Misuse) as error:
        return f"refused ({type(error).__name__})"


async def swapped_target(substrate: Substrate) -> Verdict:
    """33: /proc of the image is a directory now and a link then, while sandboxes start."""
    with canary() as bird, tempfile.TemporaryDirectory(prefix="probe-image-") as top:
        root, other = Path(top) / "root", Path(top) / "other"
        (root / "proc").mkdir(parents=True)
        other.symlink_to(bird.directory)
        try:
            await _boots(substrate, root)
        except (Unavailable, Saturated) as error:
            need(False, f"does not take a directory as image: {error}")
        # A process of its own: the swaps must not wait for the starts, nor the starts for them.
        swapper = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", _SWAPPER, root / "proc", other)
        starts, deadline = 0, time.monotonic() + _SWAPPING_S
        try:
            while starts < _STARTS and time.monotonic() < deadline:
                starts += 1
                with suppress(DutyfreeError, OSError):
                    await _boots(substrate, root)
        finally:
            swapper.kill()
            await finish(_reaped(swapper))
        if disturbed := bird.disturbed():
            return broke(f"a swapped target led the start to the host: {disturbed}")
    return held(f"{starts} starts with the target being swapped; nothing happened at the link's target")


async def _reaped(process: asyncio.subprocess.Process) -> None:
    await process.wait()


async def swapped_null(substrate: Substrate) -> Verdict:
    """32: what the next command's start opens is replaced before."""
    with canary() as bird:
        async with stage(substrate) as first, stage(substrate) as second:
            tried = await first.attempt("swap-null")
            await first.alive()
            if not await second.alive():
                return broke("a sibling was disturbed")
        disturbed = bird.disturbed()
        if disturbed or tried.got(bird.secret):
            return broke(disturbed or "the content of a host file came out")
        return held(f"swapped {tried.said.get('swapped')}; host and sibling are well")


PROBES = (
    Probe(id=29, name="cwd-by-descriptor", group="escape", run=odd_cwd, harmless=True),
    Probe(id=30, name="overwrite-agent", group="escape", run=overwrite_agent),
    Probe(id=31, name="image-with-linked-proc", group="escape", run=linked_image),
    Probe(id=32, name="swapped-dev-null", group="escape", run=swapped_null),
    Probe(id=33, name="swapped-mount-target", group="escape", run=swapped_target),
)
