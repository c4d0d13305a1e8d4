"""Probes 105 to 110: clocks and randomness."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from dutyfree.core.contract import Substrate
from dutyfree.probe.scene import shares_kernel, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_SPIN_S = 0.5


async def set_clock(substrate: Substrate) -> Verdict:
    """105: the machine's clock, and other things of the whole machine."""
    offset = time.time() - time.monotonic()
    async with stage(substrate) as box:
        tried = await box.attempt("change-machine")
    if abs(time.time() - time.monotonic() - offset) > 1:
        return broke("the machine's clock was changed")
    if (looked := tried.said.get("looked")) and shares_kernel(substrate):
        return broke(f"the host's kernel considered {', '.join(looked)}")
    return held("the machine's clock is unchanged")


async def randomness(substrate: Substrate) -> Verdict:
    """106: two sandboxes never draw the same."""
    async with stage(substrate) as first, stage(substrate) as second:
        one = (await first.attempt("randomness")).said
        two = (await second.attempt("randomness")).said
    same = [name for name in one if one[name] == two.get(name)]
    return broke(f"the same in two sandboxes: {', '.join(same)}") if same or not one else held("all different")


async def faked_clock(substrate: Substrate) -> Verdict:
    """108: a command that does not believe in time still meets its deadline."""
    code = "import time; time.time = time.monotonic = lambda: 0.0\nwhile True: pass"
    start = time.monotonic()
    async with stage(substrate) as box:
        outcome = await box.box.run(["python3", "-c", code], timeout_s=0.5)
    late = time.monotonic() - start > 15
    return (
        broke(f"it ended as {outcome.ending}") if outcome.ending != "timeout" or late else held("it met its deadline")
    )


async def accounting(substrate: Substrate) -> Verdict:
    """109: processor time that was used is told."""
    code = f"import time\nend = time.process_time() + {_SPIN_S}\nwhile time.process_time() < end: pass"
    async with stage(substrate) as box:
        outcome = await box.box.run(["python3", "-c", code], timeout_s=30)
    told = outcome.cpu_ns / 1e9
    return (
        held(f"{told:.2f} s told of {_SPIN_S} s spun")
        if told >= _SPIN_S
        else broke(f"{told:.2f} s told of {_SPIN_S} s spun")
    )


async def identity(substrate: Substrate) -> Verdict:
    """110: what names this machine stays outside; the kernel's boot id is the kernel's, and shared with it."""
    async with stage(substrate) as box:
        said = (await box.attempt("identity")).said
    host = Path("/etc/machine-id").read_text().strip() if Path("/etc/machine-id").exists() else ""
    leaks = ["the machine id"] if host and said.get("machine_id") == host else []
    leaks += ["the host's name"] if said.get("hostname") == socket.gethostname() else []
    leaks += ["the machine's serial number"] if said.get("product") else []
    return (
        broke(f"can be read: {', '.join(leaks)}") if leaks else held("neither machine id, host name nor serial number")
    )


PROBES = (
    Probe(id=105, name="set-the-clock", group="clock", run=set_clock),
    Probe(id=106, name="randomness", group="clock", run=randomness, harmless=True),
    Probe(id=108, name="faked-clock", group="clock", run=faked_clock, harmless=True),
    Probe(id=109, name="processor-time", group="clock", run=accounting, harmless=True),
    Probe(id=110, name="machine-identity", group="clock", run=identity, harmless=True),
)
