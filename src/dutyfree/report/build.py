"""From a directory of records to its report: `tables.md`, `summary.json`, `figures/`, `report.html`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.meter.projection import STEPS
from dutyfree.meter.stability import doubts
from dutyfree.meter.store import Run, load
from dutyfree.meter.summary import REFERENCE, Result, instrument, results, to_json
from dutyfree.report import containment, figures, page, scale, state, study, tables
from dutyfree.report.text import NONE, Table, percent, seconds, steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was written, and what a terminal wants to show of it."""

    html: Path
    headline: Table
    warnings: Sequence[str]
    overhead: str


def build(directories: Sequence[Path], output: Path | None = None) -> Report:
    """Write the report of one or more runs into `output`, or into the first directory."""
    run = load(directories)
    found = results(run.records)
    if not found:
        raise Misuse(
            f"{directories[0]} holds no measured trials yet; `dutyfree measure -o {directories[0]}` adds them",
            field="directory",
        )
    target = output or directories[0]
    target.mkdir(parents=True, exist_ok=True)
    return _write(directories[0], target, run, found)


def _write(source: Path, target: Path, run: Run, found: list[Result]) -> Report:
    warnings = [str(problem) for problem in run.problems] + doubts(found, run.manifest, str(source))
    overhead = tables.overhead(found, run.manifest, str(source))
    every = [
        tables.substrates(run.manifest),
        study.table(found),
        tables.summary(found),
        tables.amortised(found),
        tables.shell(found),
        tables.decomposition(found),
        *scale.tables(found),
        tables.hidden_costs(found, run.manifest),
        tables.training(found),
        state.table(found, run.manifest),
        *containment.tables(containment.kept(source)),
    ]
    protocol = _protocol(run.manifest)
    drawn = figures.draw(found, target / "figures")
    summary = to_json(found, run.manifest, warnings)
    (target / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    (target / "tables.md").write_text(
        _markdown(every, warnings, overhead, protocol), encoding="utf-8", errors="replace"
    )
    html = target / "report.html"
    html.write_text(
        page.render(
            run.manifest,
            every,
            drawn,
            warnings=warnings,
            overhead=overhead,
            tiles=_tiles(found),
            protocol=protocol,
        ),
        encoding="utf-8",
        errors="replace",
    )
    return Report(html=html, headline=_headline(found), warnings=warnings, overhead=overhead)


def _headline(found: Sequence[Result]) -> Table:
    """The few numbers a newcomer came for."""
    rows = [
        [
            r.key.tier,
            state.what(r) if state.about(r) else steps(r.key.steps),
            r.title,
            f"{r.n - r.failed}/{r.n}",
            seconds(r.summary.p50),
            seconds(r.summary.p95),
            seconds(r.amortised_action_s),
            "reference" if r.key.substrate == REFERENCE else percent(r.tax),
        ]
        for r in (*tables.real(found), *filter(state.about, found))
        if r.summary
    ]
    return Table(
        title="Rollout infrastructure tax",
        columns=["tier", "what", "substrate", "ok", "p50", "p95", "per action", "tax"],
        rows=rows,
    )


def _tiles(found: Sequence[Result]) -> list[tuple[str, str]]:
    rows = tables.real(found)
    hardest = max((r.key.tier for r in rows if r.key.steps == STEPS), default="")
    first = {
        r.title: seconds(r.first_result.p50) for r in rows if r.key.steps == 0 and r.key.tier == "T0" and r.first_result
    }
    taxed = [r for r in rows if r.key.tier == hardest and r.key.steps == STEPS and r.key.substrate != REFERENCE]
    shown = [
        (percent(r.tax), f"tax of {r.title}, {hardest}; first result after {first.get(r.title, NONE)}")
        for r in sorted(taxed, key=lambda r: r.summary.p50 if r.summary else 0.0)
    ] or [(time, f"{name}: request to first result") for name, time in first.items()]
    own = instrument(found)
    if own is not None:
        shown.append((seconds(own["per_action_s"]), "this instrument, per action"))
    return shown


def _protocol(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    given, host = manifest["protocol"], manifest["host"]
    counts = sorted(set(given["repetitions"].values()))
    lines = [
        ("repetitions", f"{counts[0]} to {counts[-1]} per configuration" if len(counts) > 1 else f"{counts[0]}"),
        ("order", f"{given['order']} (seed {given['seed']})"),
        ("clock", given["clock"]),
        ("warm-up", f"{given['warmup']}: {given['warmup_rule']}"),
        ("cache state", given["cache"]),
        ("profile", given["profile"]),
        ("deadline", f"{given['deadline_s']:g} s per trial"),
        ("failures", given["failures"]),
        ("formula", given["formula"]),
        ("host", ", ".join(f"{name} {value}" for name, value in host.items())),
        ("dutyfree", manifest["dutyfree"]),
        ("command", " ".join(["dutyfree measure", *given["command"]])),
    ]
    lines += [(f"workload {tier}", work["description"]) for tier, work in manifest["workloads"].items()]
    for label, subject in manifest["subjects"].items():
        software = {name: text for offer in subject["tiers"].values() for name, text in offer["software"].items()}
        if software:
            lines.append((f"software in {label}", "; ".join(software.values())))
    return lines


def _markdown(
    every: Sequence[Table], warnings: Sequence[str], overhead: str, protocol: Sequence[tuple[str, str]]
) -> str:
    parts = ["# Rollout infrastructure tax\n", overhead + "\n"]
    if warnings:
        parts.append("## Before you rely on this\n\n" + "\n".join(f"- {line}" for line in warnings) + "\n")
    parts.append("## Tables\n")
    parts += [table.to_markdown() for table in every]
    parts.append("## Protocol\n\n" + "\n".join(f"- **{name}**: {text}" for name, text in protocol) + "\n")
    return "\n".join(parts)
