"""The tables of the report: what was measured, the results, the study beside them, and what latency hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dutyfree.meter.record import COMPONENTS
from dutyfree.meter.stability import beside
from dutyfree.meter.stats import FEWEST_MEAN
from dutyfree.meter.summary import INSTRUMENT, REFERENCE, Result, instrument
from dutyfree.meter.workloads import loop
from dutyfree.report import state
from dutyfree.report.text import NONE, Table, interval, percent, percents, seconds, steps


def real(found: Sequence[Result], *, parallel: int | None = None) -> list[Result]:
    """The results that figures and comparisons are about: a workload of the study on a real machine, with a median.

    `parallel` is the least that was measured where it is not given: a run may hold crowds only.
    """
    rows = [r for r in found if r.key.substrate != INSTRUMENT and r.lasting and not r.emulated and not state.about(r)]
    wanted = parallel or min((r.key.parallel for r in rows), default=1)
    return [r for r in rows if r.key.parallel == wanted]


def counted(name: str, rows: Sequence[Result]) -> str:
    """A name with its number of trials, or the span of them."""
    numbers = sorted({r.n for r in rows})
    failed = sum(r.failed for r in rows)
    span = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    return f"{name}  n={span}" + (f", {failed} failed" if failed else "")


def emulated(found: Sequence[Result]) -> Table | None:
    """Machines without hardware support, in a table of their own: their times are the emulator's."""
    rows = [
        [
            f"{r.key.tier} {steps(r.key.steps)}",
            r.title,
            f"{r.n - r.failed}/{r.n}",
            seconds(r.summary.p50 if r.summary else None),
        ]
        for r in found
        if r.emulated
    ]
    if not rows:
        return None
    return Table(
        title="Emulated machines (no usable KVM): in no figure and no ranking",
        columns=["what", "substrate", "ok", "p50"],
        rows=rows,
        note="Their processor is emulated in software, so their times are the emulator's and not a virtual machine's.",
    )


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
                _role(r) or percent(r.tax),
                NONE if _role(r) else percents(r.tax_ci95),
                seconds(s.p95 if s else None),
                seconds(s.mean if s else None),
                seconds(s.sd if s else None),
                seconds(r.cost.seconds if r.cost else None),
            ]
        )
    return Table(
        title="Summary of all configurations",
        columns=["what", "substrate", "n", "failed", "p50", "its 95 %", "tax", "its 95 %", "p95", "mean", "sd",
                 "paid per success"],
        rows=rows,
        note="n counts failed trials too. A failed trial is slower than any that succeeded in p50, p95 and tax, and its "
        "time is paid by those that succeeded in the last column; mean and sd are of successes. tax = p50 / p50 of "
        "`host` under the same conditions - 1. A cold start runs from the request to the end of set-up. Intervals are of "
        "order statistics from n = 5 on, of means from n = "
        f"{FEWEST_MEAN} on; p95 is given from n = 20 on; – is not known. " + _comparisons(found),
    )  # fmt: skip


def _comparisons(found: Sequence[Result]) -> str:
    """A word on so many intervals at once."""
    number = sum(r.tax_ci95 is not None and not _role(r) for r in found)
    if number < 2:
        return ""
    return (
        f"These are {number} comparisons at once: of those without a difference about one in twenty shows one by chance, "
        f"here up to {max(1, round(number / 20))}."
    )


def _role(result: Result) -> str:
    """Substrates that are not there to be taxed."""
    return {REFERENCE: "reference", INSTRUMENT: "instrument"}.get(result.key.substrate, "")


def decomposition(found: Sequence[Result]) -> Table:
    """The time by component, in means, since those sum."""
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
    """Time of a whole rollout over its actions."""
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
                seconds(longest.action_excess_p50),
                seconds(longest.action_dispatch_p50),
            ]
        )
    return Table(
        title="Amortised latency per action",
        columns=[
            "tier",
            "substrate",
            *(f"over {n} actions" for n in lengths),
            "one action p50",
            "over the host's same action",
            "its dispatch",
        ],
        rows=rows,
        note="Amortised: the whole rollout's time over its number of actions, fixed costs included. Dispatch is what the "
        "substrate itself says the command does not account for; what it slows inside the command shows only over the "
        "host's same action.",
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
    """Costs that latency does not show."""
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
                f"{_failed_share(mine):.1%}",
                f"{max(sizes) / (1 << 20):,.0f} MiB" if sizes else "none of its own",
                ", ".join(sorted({o["network"] for o in offered})) or NONE,
                subject["isolation"],
                ", ".join(subject["limits_enforced"]) or "none",
            ]
        )
    return Table(
        title="Costs that latency hides",
        columns=["substrate", "failed trials", "time paid for failures", "image size", "network inside", "isolation",
                 "limits it can enforce"],
        rows=rows,
        note="network inside: `none` is loopback only (a clone then goes through one relayed port, or an upload), `host` is the "
        "machine's own network without any isolation.",
    )  # fmt: skip


def _failed_share(rows: Sequence[Result]) -> float:
    """Share of the measured time that went into trials which failed."""
    whole = sum(r.cost.seconds * (r.n - r.failed) for r in rows if r.cost)
    good = sum(sum(r.times) for r in rows)
    return (whole - good) / whole if whole else 0.0


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


def _crowded(found: Sequence[Result]) -> str:
    """The same with rollouts in flight together: what they wait for the meter's own event loop."""
    told = [
        f"{seconds(own['per_action_s'])} with {n} at once"
        for n in sorted({r.key.parallel for r in found} - {1})
        if (own := instrument(found, n)) is not None
    ]
    return f" In parallel: {', '.join(told)}." if told else ""


def overhead(found: Sequence[Result], manifest: Mapping[str, Any], directory: str) -> str:
    """One sentence on the instrument itself."""
    own = instrument(found)
    if own is None:
        return f"The instrument's own overhead was not measured: {beside(manifest, directory, INSTRUMENT)}."
    return (
        f"The instrument's own overhead is {seconds(own['per_action_s'])} per action ({own['steps']:.0f}-step "
        "rollouts on a substrate that does nothing, without set-up, over their actions). It is part of every number here; nothing is "
        f"subtracted.{_crowded(found)}"
    )
