"""From a simulated run to what is shown of it: one row per policy, and the document that holds them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dutyfree.warm.simulate.engine import Run
from dutyfree.warm.simulate.scenario import Scenario

SCHEMA = 1
REFERENCE = "round-robin"
"""The policy that the others are compared with, where it was run."""
_CURVE = tuple(float(share) for share in (*np.linspace(0, 99, 100), 99.5, 99.9, 100))


def row(policy: str, run: Run) -> dict[str, Any]:
    """One policy."""
    ready, waits = np.asarray(run.ready_s), np.asarray(run.waits_s)
    n = len(ready)
    return {
        "policy": policy,
        "rollouts": n,
        "readiness_total_s": float(ready.sum()),
        "readiness_mean_s": float(ready.mean()),
        "readiness_p50_s": float(np.percentile(ready, 50)),
        "readiness_p95_s": float(np.percentile(ready, 95)),
        "readiness_p99_s": float(np.percentile(ready, 99)),
        "wait_mean_s": float(waits.mean()),
        "wait_p95_s": float(np.percentile(waits, 95)),
        "delay_mean_s": float((ready + waits).mean()),
        "delay_p95_s": float(np.percentile(ready + waits, 95)),
        "hit_rate": run.hits / n,
        "claim_rate": run.claims / n,
        "builds": run.count.builds,
        "built_s": run.count.built_s,
        "pulls": run.count.pulls,
        "makespan_s": run.makespan_s,
        "readiness_curve_s": [float(value) for value in np.percentile(ready, _CURVE)],
    }


def document(scenario: Scenario, seed: int, once_s: float, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the document of `dutyfree simulate --json`. `times_less`: how much less readiness than round robin."""
    totals = {one["policy"]: one["readiness_total_s"] for one in rows}
    reference = totals.get(REFERENCE)
    return {
        "schema": SCHEMA,
        "seed": seed,
        "scenario": scenario.to_json(),
        "once_s": once_s,
        "curve_percentiles": list(_CURVE),
        "policies": [
            {
                **one,
                "times_less": reference / one["readiness_total_s"] if reference and one["readiness_total_s"] else None,
            }
            for one in rows
        ],
    }
