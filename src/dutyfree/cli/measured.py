"""Costs of a simulated cluster from what was measured on a real machine: the one place that knows records and scenarios."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.meter.store import load
from dutyfree.meter.summary import Result, results
from dutyfree.warm.simulate.scenario import Scenario


def measured(scenario: Scenario, directory: Path, substrate: str) -> Scenario:
    """The scenario with the medians of `substrate`, as far as the records go; `Misuse` if they say nothing of it.

    create: T0's cold start · claim: the same on `warm:<substrate>` · repository: T2's set-up · run: the longest
    trajectory of the highest tier, without its set-up · reset: the tier of that name.
    """
    found = [one for one in results(load([directory]).records) if one.summary is not None]
    if not any(one.key.substrate == substrate for one in found):
        known = ", ".join(sorted({one.key.substrate for one in found})) or "nothing"
        raise Misuse(f"{directory} holds records of {known}, not of {substrate}", field="--substrate")
    own = [one for one in found if one.key.substrate == substrate]
    create_s = _first_result(own, "T0")
    claim_s = _first_result([one for one in found if one.key.substrate == f"warm:{substrate}"], "T0")
    setup_s = next((o.decomposition["setup"] for o in own if (o.key.tier, o.key.steps) == ("T2", 0)), None)
    reset_s = next((o.first_result.p50 for o in own if o.key.tier == "reset" and o.first_result), None)
    longest = max(
        (o for o in own if o.key.steps > 1),
        key=lambda o: (o.key.tier[:1] == "T", o.key.tier, o.key.steps),
        default=None,
    )
    run_s = longest.decomposition["run"] + longest.decomposition["dispatch"] if longest else None
    values: dict[str, Any] = {"create_s": create_s, "claim_s": claim_s, "reset_s": reset_s, "run_s": run_s}
    stages = tuple(
        replace(stage, seconds=setup_s) if setup_s and stage.name == "repository" else stage
        for stage in scenario.stages
    )
    return replace(scenario, stages=stages, **{name: value for name, value in values.items() if value is not None})


def _first_result(found: list[Result], tier: str) -> float | None:
    for one in found:
        if one.key.tier == tier and one.key.steps == 0 and one.key.parallel == 1 and one.first_result is not None:
            return one.first_result.p50
    return None
