"""The tables of the report: what was measured, the results, the study beside them, and what latency hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dutyfree.meter.record import COMPONENTS
from dutyfree.meter.stability import beside
from dutyfree.meter.summary import REFERENCE, Result, instrument
from dutyfree.meter.workloads import loop
from dutyfree.report import state
from dutyfree.report.text import NONE, Table, interval, percent, percents, seconds, steps

INSTRUMENT = "noop"


def real(found: Sequence[Result], *, parallel: int = 1) -> list[Result]:
    """The results that figures and comparisons are about: no instrument, something succeeded, a workload of the study."""
    return [
        r
        for r in found
        if r.key.substrate != INSTRUMENT and r.summary and r.key.parallel == parallel and not state.about(r)
    ]


def substrates(manifest: Mapping[str, Any]) -> Table:
    """Table 1: the substrates as measured."""
    rows = []
    for label, subject in manifest["subjects"].items():
        offers = subject["tiers"]
        offered = [tier for tier, offer in offers.items() if offer["offered"]]
        missing = [f"{tier}: {offer['reason']}" for tier, offer in offers.items() if not offer["offered"]]
        images = {offer["image"] for offer in offers.values() if offer["offered"]}
        limits = {f"{k} {v:g}" for offer in offers.values() for k, v in offer["limits"].items()}
        rows.append(
            [
                label,
                subject["version"],
                subject["isolation"],
                subject["dispatch"],
                ", ".join(sorted(images)) or NONE,
                ", ".join(sorted({offer["network"] for offer in offers.values() if offer["offered"]})) or NONE,
                ", ".join(sorted({offer.get("storage") or NONE for offer in offers.values() if offer["offered"]}))
                or NONE,
                ", ".join(sorted(limits)) or "none",
                ", ".join(offered) + (f"; not offered: {'; '.join(missing)}" if missing else ""),
            ]
        )
    return Table(
        title="Table 1. Substrates as measured",
        columns=[
            "substrate",
            "version",
            "isolation",
            "dispatch",
            "image",
            "network",
            "writes go to",
            "limits",
            "tiers",
        ],
        rows=rows,
        note="isolation: what stands between the code and the machine. dispatch: `api` is the substrate's own exec "
        "call per action, `agent` one stream to a guest agent.",
    )


def summary(found: Sequence[Result]) -> Table:
    """The reviewers' table: everything about every configuration."""
    rows = []
    for r in found:
        s = r.summary
        rows.append(
            [
                f"{r.key.tier} {steps(r.key.steps)}" + (f" ×{r.key.parallel}" if r.key.parallel > 1 else ""),
                r.title,
                str(r.n),
                str(r.failed),
                seconds(s.p50 if s else None),
                interval(s.ci_p50 if s else None),
                seconds(s.p95 if s else None),
                seconds(s.p99 if s else None),
                seconds(s.mean if s else None),
                seconds(s.sd if s else None),
                _role(r) or percent(r.tax),
                NONE if _role(r) else percents(r.tax_ci95),
            ]
        )
    return Table(
        title="Summary of all configurations",
        columns=["what", "substrate", "n", "failed", "p50", "95 % interval of p50", "p95", "p99", "mean", "sd",
                 "tax", "95 % interval of tax"],
        rows=rows,
        note="n counts failed trials too; times are of those that succeeded. tax = p50 / p50 of `host` under the same "
        "conditions - 1. Intervals are percentile bootstraps. A cold start runs from the request to the end of set-up.",
    )  # fmt: skip


def _role(result: Result) -> str:
    """Substrates that are not there to be taxed."""
    return {REFERENCE: "reference", INSTRUMENT: "instrument"}.get(result.key.substrate, "")


def decomposition(found: Sequence[Result]) -> Table:
    """Where the time went, in means, since those sum."""
    rows = [
        [
            f"{r.key.tier} {steps(r.key.steps)}" + (f" ×{r.key.parallel}" if r.key.parallel > 1 else ""),
            r.title,
            *(seconds(r.decomposition[name]) for name in COMPONENTS),
            seconds(sum(r.decomposition.values())),
        ]
        for r in found
        if r.summary
    ]
    return Table(
        title="Decomposition (means, which sum to the mean total)",
        columns=["what", "substrate", *COMPONENTS, "total"],
        rows=rows,
        note="dispatch + run = actions. orchestration is what no other component explains: queueing, control plane, and "
        "this instrument. A cold start does not include destroy.",
    )


def amortised(found: Sequence[Result]) -> Table:
    """Whole rollout over its actions."""
    lengths = sorted({r.key.steps for r in real(found) if r.key.steps})
    cells: dict[tuple[str, str], dict[int, Result]] = {}
    for r in real(found):
        if r.key.steps:
            cells.setdefault((r.key.tier, r.title), {})[r.key.steps] = r
    rows = []
    for (tier, name), by_length in cells.items():
        longest = by_length[max(by_length)]
        rows.append(
            [
                tier,
                name,
                *(seconds(by_length[n].amortised_action_s if n in by_length else None) for n in lengths),
                seconds(longest.action_p50),
                seconds(longest.action_dispatch_p50),
            ]
        )
    return Table(
        title="Amortised latency per action",
        columns=["tier", "substrate", *(f"over {n} actions" for n in lengths), "one action p50", "its dispatch p50"],
        rows=rows,
        note="Amortised: the whole rollout's time over its number of actions, fixed costs included.",
    )


def shell(found: Sequence[Result]) -> Table:
    """The shell's own cost: the workload's, not the substrate's."""
    best: dict[str, Result] = {}
    for r in real(found):
        if r.direct_p50 is not None and (r.title not in best or r.key.steps > best[r.title].key.steps):
            best[r.title] = r
    rows = [
        [name, seconds(r.direct_p50), seconds(r.shell_p50), seconds((r.shell_p50 or 0.0) - (r.direct_p50 or 0.0))]
        for name, r in best.items()
    ]
    return Table(
        title="What the shell costs (T0)",
        columns=["substrate", "`true`, directly", "`echo`, by bash -c", "the shell"],
        rows=rows,
        note="Medians, call to result. The shell is part of the workload, the same on all substrates; no action uses a "
        "login shell, which can cost hundreds of milliseconds more.",
    )


def hidden_costs(found: Sequence[Result], manifest: Mapping[str, Any]) -> Table:
    """What latency does not show."""
    rows = []
    for label, subject in manifest["subjects"].items():
        mine = [r for r in found if r.key.substrate == subject["name"] and r.key.dispatch == subject["dispatch"]]
        trials, failed = sum(r.n for r in mine), sum(r.failed for r in mine)
        sizes = [o["image_bytes"] for o in subject["tiers"].values() if o.get("image_bytes")]
        offered = [o for o in subject["tiers"].values() if o["offered"]]
        rows.append(
            [
                label,
                f"{failed} of {trials}",
                "0 (never)",
                f"{max(sizes) / (1 << 20):,.0f} MiB" if sizes else "none of its own",
                ", ".join(sorted({o["network"] for o in offered})) or NONE,
                subject["isolation"],
                ", ".join(subject["limits_enforced"]) or "none",
            ]
        )
    return Table(
        title="Costs that latency hides",
        columns=["substrate", "failed trials", "retries", "image size", "network inside", "isolation",
                 "limits it can enforce"],
        rows=rows,
        note="network inside: `none` is loopback only (a clone then goes through one relayed port, or an upload), `host` is the "
        "machine's own network without any isolation.",
    )  # fmt: skip


def training(found: Sequence[Result]) -> Table:
    """Whole training runs, where they were measured."""
    rows = [
        [r.title, str(r.n), str(r.failed), seconds(r.summary.p50), interval(r.summary.ci_p50), seconds(r.summary.p95),
         _role(r) or percent(r.tax)]
        for r in real(found)
        if r.key.tier == loop.TIER and r.summary
    ]  # fmt: skip
    return Table(
        title="The same training loop on each substrate",
        columns=["substrate", "n", "failed", "wall-clock p50", "95 % interval of p50", "p95", "more than the host"],
        rows=rows,
        note=f"{loop.ITERATIONS} iterations of {loop.GROUP} rollouts at once, REINFORCE over candidate patches, rewards "
        "from real test runs. The same seeds, so the same rollouts and rewards on every substrate."
        if rows
        else "Not measured in this run: `dutyfree measure --loop -s host -s native -o DIR`.",
    )


def overhead(found: Sequence[Result], manifest: Mapping[str, Any], directory: str) -> str:
    """One sentence on the instrument itself."""
    own = instrument(found)
    if own is None:
        return f"The instrument's own overhead was not measured: {beside(manifest, directory, INSTRUMENT)}."
    return (
        f"The instrument's own overhead is {seconds(own['per_action_s'])} per action ({own['steps']:.0f}-step "
        "rollouts on a substrate that does nothing, without set-up, over their actions). It is part of every number here; nothing is "
        "subtracted."
    )
