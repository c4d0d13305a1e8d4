"""State off the critical path: what reset, fork and each stage cost on every substrate, and who does not offer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dutyfree.meter.summary import Result
from dutyfree.meter.workloads.ability import FORKS
from dutyfree.report.text import NONE, Table, seconds

_TITLES = {"reset": "reset", "fork": f"fork into {FORKS}"}


def about(result: Result) -> bool:
    """It is a row of this table, and not of the study's."""
    return result.key.tier in _TITLES or "@" in result.key.tier


def what(result: Result) -> str:
    """For the column that otherwise says how many steps."""
    return "to first result" if result.key.tier in _TITLES else "cold start"


def table(found: Sequence[Result], manifest: Mapping[str, Any]) -> Table:
    """A row for each substrate and ability; T2's own cold start beside those from its stages."""
    rows = [
        [
            r.title,
            _TITLES.get(r.key.tier, r.key.tier),
            f"{r.n - r.failed}/{r.n}",
            seconds(r.summary.p50 if r.summary else None),
            seconds(r.summary.p95 if r.summary else None),
            seconds(r.first_result.p50 if r.first_result else None),
        ]
        for r in found
        if about(r) or (r.key.tier == "T2" and r.key.steps == 0 and any("@" in o.key.tier for o in found))
    ]
    for label, subject in manifest["subjects"].items():
        for tier, offer in subject["tiers"].items():
            if not offer["offered"] and (tier in _TITLES or "@" in tier):
                rows.append([label, _TITLES.get(tier, tier), "not offered", NONE, NONE, NONE])
    return Table(
        title="State: reset, fork, and T2 from each stage",
        columns=["substrate", "what", "ok", "p50", "p95", "first result p50"],
        rows=rows,
        note="Reset and fork: of a sandbox that has been used, to the first result after it (fork: of the slowest). T2 "
        "and T2@stage: from the request to the end of what set-up is left."
        if rows
        else "Not measured in this run: `dutyfree measure --tier reset,fork,T2,T2@repository,T2@dependencies -o DIR`.",
    )
