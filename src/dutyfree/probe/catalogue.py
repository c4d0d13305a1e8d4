"""All probes, in the order of their numbers, and how one is judged.

`judge` is the only place where a probe's own failure becomes a verdict: what could not be tried is None and says why,
never a pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from dutyfree.core.contract import Substrate
from dutyfree.core.errors import DutyfreeError, Unsupported
from dutyfree.probe.agent import PROBES as AGENT
from dutyfree.probe.archive import PROBES as ARCHIVE
from dutyfree.probe.clock import PROBES as CLOCK
from dutyfree.probe.contamination import PROBES as CONTAMINATION
from dutyfree.probe.egress import PROBES as EGRESS
from dutyfree.probe.escape import PROBES as ESCAPE
from dutyfree.probe.exhaustion import PROBES as EXHAUSTION
from dutyfree.probe.file_api import PROBES as FILE_API
from dutyfree.probe.inode import PROBES as INODE
from dutyfree.probe.interference import PROBES as INTERFERENCE
from dutyfree.probe.kernel_memory import PROBES as KERNEL_MEMORY
from dutyfree.probe.network import PROBES as NETWORK
from dutyfree.probe.renewal import PROBES as RENEWAL
from dutyfree.probe.reward import PROBES as REWARD
from dutyfree.probe.score import PROBES as SCORE
from dutyfree.probe.strain import PROBES as STRAIN
from dutyfree.probe.table import PROBES as TABLE
from dutyfree.probe.verdict import Group, Probe, Verdict, broke, untried

__all__ = ["CATALOGUE", "Group", "Probe", "Verdict", "judge"]

PROBE_TIMEOUT_S = 120.0
"""For one probe with all its sandboxes; every attempt inside has a shorter deadline of its own."""


def _assemble() -> tuple[Probe, ...]:
    groups = (
        ESCAPE,
        FILE_API,
        ARCHIVE,
        EXHAUSTION,
        STRAIN,
        CONTAMINATION,
        RENEWAL,
        INTERFERENCE,
        REWARD,
        SCORE,
        NETWORK,
        EGRESS,
        CLOCK,
        INODE,
        KERNEL_MEMORY,
        TABLE,
        AGENT,
    )
    probes = sorted((probe for group in groups for probe in group), key=lambda probe: probe.id)
    twice = [number for number, count in Counter(probe.id for probe in probes).items() if count > 1]
    if twice:
        raise ValueError(f"probe numbers used twice: {twice}")
    return tuple(probes)


CATALOGUE: tuple[Probe, ...] = _assemble()


async def judge(probe: Probe, substrate: Substrate) -> Verdict:
    """Run one probe. Where nothing isolates, only those that do no damage are run."""
    if substrate.capabilities.isolation == "none" and not probe.harmless:
        return untried("not run: nothing isolates it here, so it would hit the machine itself")
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await probe.run(substrate)
    except Unsupported as error:
        return untried(f"not offered: {error}")
    except TimeoutError:
        return untried(f"could not be judged within {PROBE_TIMEOUT_S:g} s")
    except (DutyfreeError, OSError) as error:
        what = f"{type(error).__name__}: {error}"
        if getattr(error, "step", None) == "destroy":
            return broke(f"its sandbox could not be destroyed: {what}")
        return untried(f"could not be tried: {what}")
