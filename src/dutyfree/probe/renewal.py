"""Probes 70, 75, 78, 79, 81 and 107: the start state, and whether one really is back in it.

With `reset` that is the same sandbox after it; without, the next sandbox.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError
from dutyfree.probe.canary import marked_processes, marked_processes_end
from dutyfree.probe.scene import Stage, need, shares_kernel, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_FREEZER = Path("/sys/fs/cgroup/freezer")
_MEMBERS = 6
_SLACK_S = 5.0


@asynccontextmanager
async def _next(substrate: Substrate, used: Stage) -> AsyncIterator[tuple[str, Stage]]:
    """The rollout after the one that used this sandbox."""
    if substrate.capabilities.reset:
        await used.reset()
        yield "the same sandbox after its reset", used
    else:
        await used.box.destroy()
        async with stage(substrate) as later:
            yield "the next sandbox", later


async def _digest(box: Stage) -> str:
    said = (await box.attempt("manifest", timeout_s=60)).said
    need(said.get("files", 0) > 0, "the image's files cannot be read")
    return f"{said['digest']} of {said['files']} files"


async def stuck(substrate: Substrate) -> Verdict:
    """70: a process that no signal ends now; whoever says that it is gone must be right."""
    need(
        (_FREEZER / "tasks").exists() and shares_kernel(substrate),
        "no version 1 freezer: nothing unkillable can be made",
    )
    mark = f"stuck{secrets.token_hex(8)}"
    with _frozen(mark) as cage:
        async with stage(substrate) as box:
            running = await box.box.start(box.command("stay", mark=mark), timeout_s=90)
            await anext(aiter(running))
            for pid in marked_processes(mark):
                (cage / "cgroup.procs").write_text(str(pid))
            (cage / "freezer.state").write_text("FROZEN")
            work = asyncio.ensure_future(_end(box.box, reset=substrate.capabilities.reset))
            done, _ = await asyncio.wait([work], timeout=_SLACK_S)
            said = work.result() if done else "still trying"
            there = bool(marked_processes(mark))
            (cage / "freezer.state").write_text("THAWED")
            await work
            left = await marked_processes_end(mark)
    if said == "gone" and there:
        return broke("the sandbox was said to be clean while its process was there")
    return (
        broke("the process stayed after it could be killed")
        if left
        else held(f"not called clean ({said}), ended after")
    )


async def _end(box: Sandbox, *, reset: bool) -> str:
    """Make it clean, one way or the other; what the substrate says about it."""
    try:
        await (box.reset() if reset else box.destroy())
    except (DutyfreeError, OSError) as error:
        return f"refused ({type(error).__name__})"
    return "gone"


class _frozen:  # noqa: N801 - used as a function
    """A freezer of our own; on leaving, what is in it is thawed and it is removed."""

    def __init__(self, mark: str) -> None:
        self._cage = _FREEZER / mark

    def __enter__(self) -> Path:
        try:
            self._cage.mkdir()
        except OSError as error:
            need(False, f"nothing unkillable can be made: {error.strerror}")
        return self._cage

    def __exit__(self, *exc: object) -> None:
        (self._cage / "freezer.state").write_text("THAWED")
        deadline = time.monotonic() + _SLACK_S
        while self._cage.exists() and time.monotonic() < deadline:
            with suppress(OSError):  # busy until the last process has been collected
                self._cage.rmdir()


async def timers(substrate: Substrate) -> Verdict:
    """75: timers, pending signals, masks and priorities of one command, as the next one finds them."""
    mark = f"timer{secrets.token_hex(8)}"
    async with stage(substrate) as box:
        before = (await box.attempt("inherited")).said
        await box.attempt("leave-timers", mark=mark)
        if left := await marked_processes_end(mark):
            return broke(f"{len(left)} processes that wait for a timer are still there")
        need(bool(before), "the attempt did not report")
        if (found := (await box.attempt("inherited")).said) != before:
            return broke(f"the next command starts with {found}, the first one with {before}")
        async with _next(substrate, box) as (who, later):
            same = (await later.attempt("inherited")).said == before
    return held(f"neither the next command nor {who} has any of it") if same else broke(f"{who} starts differently")


async def metadata(substrate: Substrate) -> Verdict:
    """78: times, owners, modes, attributes, contents and names."""
    async with stage(substrate) as box:
        before = await _digest(box)
        done = (await box.attempt("disturb", mark=f"disturbed{secrets.token_hex(8)}")).said.get("done", [])
        need(bool(done) and await _digest(box) != before, "nothing could be changed")
        async with _next(substrate, box) as (who, later):
            after = await _digest(later)
    return held(f"{len(done)} changes, none in {who}") if after == before else broke(f"{who} has {after}, not {before}")


async def members(substrate: Substrate) -> Verdict:
    """79: whoever is handed out has been nobody's, however many were used and given back before."""
    mark = f"member{secrets.token_hex(8)}"
    async with stage(substrate) as fresh:
        before = await _digest(fresh)
    for _ in range(_MEMBERS):
        async with stage(substrate) as used:
            await used.attempt("disturb", mark=mark)
            await used.attempt("leave-files", mark=mark)
            await used.box.run(used.command("daemon", mark=mark), background=True, timeout_s=30)
    if left := await marked_processes_end(mark):
        return broke(f"{len(left)} processes of sandboxes that were given back are there")
    for number in range(_MEMBERS):
        async with stage(substrate) as later:
            if await _digest(later) != before:
                return broke(f"sandbox {number} after is not as the first one was")
            if found := (await later.attempt("visible-marks", mark=mark)).said.get("found"):
                return broke(f"sandbox {number} after has {found}")
    return held(f"{_MEMBERS} were used, and {_MEMBERS} after them are as new")


async def identical(substrate: Substrate) -> Verdict:
    """81: back twice, the same bytes twice."""
    digests = set()
    async with stage(substrate) as box:
        digests.add(await _digest(box))
        async with _next(substrate, box) as (who, later):
            digests.add(await _digest(later))
            await later.attempt("disturb", mark=f"again{secrets.token_hex(8)}")
            async with _next(substrate, later) as (_, last):
                digests.add(await _digest(last))
    return held(f"one manifest, in {who} too: {digests.pop()}") if len(digests) == 1 else broke(f"manifests: {digests}")


async def clocks(substrate: Substrate) -> Verdict:
    """107: clocks go on, neither back nor far ahead, after a reset, in a fork, and from a snapshot."""
    offered = [name for name in ("reset", "fork", "snapshot") if getattr(substrate.capabilities, name)]
    need(bool(offered), "nothing is restored here")
    async with stage(substrate) as box:
        before, start = await _clocks(box), time.monotonic()
        found = {}
        if substrate.capabilities.fork:
            (child,) = await box.box.fork(1)
            async with child as fork:
                found["fork"] = await _clocks(box.on(fork))
        if substrate.capabilities.reset:
            await box.reset()
            found["reset"] = await _clocks(box)
        passed = time.monotonic() - start
    for name, after in found.items():
        for clock, value in after.items():
            if not 0 <= value - before[clock] <= passed + _SLACK_S:
                return broke(f"after {name} {clock} moved by {value - before[clock]:.3f} s in {passed:.3f} s")
    need(bool(found), "nothing that was restored could be asked")
    return held(f"sane after {', '.join(found)}")


async def _clocks(box: Stage) -> dict[str, Any]:
    said = dict((await box.attempt("clocks")).said)
    need(bool(said), "the attempt did not report")
    return said


PROBES = (
    Probe(id=70, name="unkillable-process", group="contamination", run=stuck),
    Probe(id=75, name="timers", group="contamination", run=timers),
    Probe(id=78, name="file-metadata", group="contamination", run=metadata),
    Probe(id=79, name="used-members", group="contamination", run=members),
    Probe(id=81, name="identical-manifests", group="contamination", run=identical),
    Probe(id=107, name="clocks-after-restore", group="clock", run=clocks),
)
