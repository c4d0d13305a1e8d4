"""The parts of a rollout when the host's same actions are the work itself: where a saving comes from."""

from __future__ import annotations

from dutyfree.meter.summary import Result

FIXED = ("create", "ready", "setup", "orchestration", "reset", "destroy")
"""Everything but actions."""


def parts(result: Result) -> dict[str, float]:
    """Mean seconds; they sum to the mean rollout. Without a host to compare with, what the commands say is the work."""
    mine = result.decomposition
    added = mine["dispatch"] if result.excess_mean is None else result.excess_mean
    return {
        "host's own actions": mine["dispatch"] + mine["run"] - added,
        "added to actions": added,
        "creation to removal": sum(mine[name] for name in FIXED),
    }
