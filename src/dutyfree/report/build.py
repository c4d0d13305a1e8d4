"""Build the report of a directory of records: `tables.md`, `summary.json`, `figures/`, `report.html`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.meter.stability import doubts
from dutyfree.meter.store import Run, load
from dutyfree.meter.summary import REFERENCE, Result, results, to_json
from dutyfree.report import cold, containment, figures, page, scale, state, study, tables
from dutyfree.report import load as loads
from dutyfree.report.front import Front, front
from dutyfree.report.text import NONE, Table, percent, percents, seconds, steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The written report, and the parts of it for a terminal."""

    html: Path
    sentence: str
    """The finding, as the page opens."""
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
        tables.summary(found),
        cold.table(found, run.manifest),
        *filter(None, [tables.emulated(found)]),
        tables.substrates(run.manifest),
        study.table(found),
        tables.amortised(found),
        tables.shell(found),
        tables.decomposition(found),
        *scale.tables(found),
        tables.hidden_costs(found, run.manifest),
        loads.table(found, run.manifest),
        tables.training(found),
        state.table(found, run.manifest),
        *containment.tables(containment.kept(source)),
    ]
    protocol = _protocol(run.manifest)
    first = front(found, manifest=run.manifest)
    drawn = figures.draw(found, target / "figures")
    summary = to_json(found, run.manifest, warnings)
    (target / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    (target / "tables.md").write_text(
        _markdown(first, every, warnings, overhead, protocol), encoding="utf-8", errors="replace"
    )
    html = target / "report.html"
    html.write_text(
        page.render(
            run.manifest,
            every,
            drawn,
            warnings=warnings,
            overhead=overhead,
            front=first,
            protocol=protocol,
        ),
        encoding="utf-8",
        errors="replace",
    )
    return Report(html=html, sentence=first.sentence, headline=_headline(found), warnings=warnings, overhead=overhead)


def _headline(found: Sequence[Result]) -> Table:
    """The few numbers a newcomer came for."""
    rows = [
        [
            r.key.tier,
            state.what(r) if state.about(r) else steps(r.key.steps),
            r.title,
            f"{r.n - r.failed}/{r.n}",
            seconds(r.summary.p50),
            "reference" if r.key.substrate == REFERENCE else percent(r.tax),
            NONE if r.key.substrate == REFERENCE else percents(r.tax_ci95),
        ]
        for r in (*tables.real(found), *filter(state.about, found))
        if r.summary
    ]
    return Table(
        title="Rollout infrastructure tax",
        columns=["tier", "what", "substrate", "ok", "p50", "tax", "its 95 %"],
        rows=rows,
    )


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
    first: Front, every: Sequence[Table], warnings: Sequence[str], overhead: str, protocol: Sequence[tuple[str, str]]
) -> str:
    parts = ["# Rollout infrastructure tax\n", f"{first.sentence}\n", f"{first.saving}\n", overhead + "\n"]
    if warnings:
        parts.append("## Before you rely on this\n\n" + "\n".join(f"- {line}" for line in warnings) + "\n")
    parts.append("## Tables\n")
    parts += [table.to_markdown() for table in every]
    parts.append("## Protocol\n\n" + "\n".join(f"- **{name}**: {text}" for name, text in protocol) + "\n")
    return "\n".join(parts)
