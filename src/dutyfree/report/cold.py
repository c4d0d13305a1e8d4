"""Cold starts by how they come: a stock of prepared sandboxes hides a cost, and does not remove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dutyfree.meter.summary import INSTRUMENT, Result
from dutyfree.report.text import NONE, Table, interval, seconds

TIER = "T0"


def stocks(manifest: Mapping[str, Any]) -> dict[tuple[str, str], int | None]:
    """Prepared sandboxes of each substrate and dispatch; None where the run did not write it down."""
    return {(subject["name"], subject["dispatch"]): subject.get("stock") for subject in manifest["subjects"].values()}


def came(result: Result, stock: int | None) -> str:
    """Name the way its sandboxes came."""
    how = "calm" if result.key.parallel == 1 else f"{result.key.parallel} at once"
    if stock is None:
        return f"{how}, stock not recorded"
    return f"{how}, from a stock of {stock}" if stock else f"{how}, made when asked for"


def table(found: Sequence[Result], manifest: Mapping[str, Any]) -> Table:
    """First results of cold starts on the smallest tier, the fastest first, each with the way it came."""
    stock = stocks(manifest)
    rows = [
        (r, r.first_result)
        for r in found
        if r.key.tier == TIER and not r.key.steps and r.first_result and r.key.substrate != INSTRUMENT
    ]
    return Table(
        title=f"Cold starts by how they come ({TIER}): request to first result",
        columns=["substrate", "how", "n", "p50", "its 95 %", "p95"],
        rows=[
            [
                r.title,
                came(r, stock.get((r.key.substrate, r.key.dispatch))),
                str(r.n),
                seconds(first.p50),
                interval(first.ci_p50),
                seconds(first.p95),
            ]
            for r, first in sorted(rows, key=lambda row: (row[0].key.parallel, row[1].p50))
        ],
        note="A start from a stock took work before it was asked for. Without stock (`native?stock=0`) and in bursts "
        "(`--parallel 32 --steps 0`) the whole of it shows."
        if rows
        else f"Not measured in this run {NONE} `--steps 0`.",
    )
