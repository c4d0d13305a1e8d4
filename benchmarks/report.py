"""From one run's results to markdown, and to JSON for machines. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import subprocess_run, transfer
from benchmarks.bounds import Bound, Results, quantile
from benchmarks.interleave import Contender, Samples

_GROUPS = {
    "reference": "The reference: plain subprocess on the machine",
    "start": "From nothing to the first command's result",
    "action": "One more command",
    "file": "A small file",
}
_MARKS = {True: "met", False: "**missed**", None: "not settled"}


def markdown(
    *,
    facts: Mapping[str, Any],
    protocol: Sequence[str],
    contenders: Sequence[Contender],
    results: Results,
    bounds: Sequence[Bound],
) -> str:
    lines = ["# Speed of the native substrate", "", "## Host", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "## Protocol", "", *(f"- {line}" for line in protocol)]
    for group, title in _GROUPS.items():
        lines += _table(title, [c for c in contenders if c.group == group], results.samples)
    lines += _transfers([c for c in contenders if c.group == "transfer"], results.samples)
    lines += _many(results)
    if results.missing:
        lines += ["", "## Not here", "", *(f"- {name}: {why}" for name, why in results.missing.items())]
    lines += ["", "## Bounds", "", "| what | bound | seen | |", "|---|---|---|---|"]
    lines += [f"| {b.what} | {b.bound} | {b.seen} | {_MARKS[b.met]} |" for b in bounds]
    lines += ["", verdict(bounds)]
    return "\n".join(lines) + "\n"


def verdict(bounds: Sequence[Bound]) -> str:
    met, missed = (sum(1 for b in bounds if b.met is value) for value in (True, False))
    return f"{met} of {len(bounds)} bounds met, {missed} missed, {len(bounds) - met - missed} not settled."


def summary(*, facts: Mapping[str, Any], results: Results, bounds: Sequence[Bound]) -> dict[str, Any]:
    """The same for machines; the raw samples stay in their own files."""
    return {
        "schema": 1,
        "host": dict(facts),
        "results": [_cell(name, samples) for name, samples in results.samples.items()],
        "throughput": results.throughput and asdict(results.throughput),
        "crowd": results.crowd and asdict(results.crowd),
        "missing": dict(results.missing),
        "bounds": [asdict(bound) for bound in bounds],
    }


def _cell(name: str, samples: Samples) -> dict[str, Any]:
    cell: dict[str, Any] = {"name": name, "n": len(samples.times_ns), "failures": len(samples.failures)}
    if samples.times_ns:
        cell |= {"p50_s": quantile(samples.times_ns, 0.5) / 1e9, "p95_s": quantile(samples.times_ns, 0.95) / 1e9}
    return cell


def _table(title: str, contenders: Sequence[Contender], samples: Mapping[str, Samples]) -> list[str]:
    rows = [c for c in contenders if c.name in samples]
    if not rows:
        return []
    lines = [
        "",
        f"## {title}",
        "",
        '| what | n | failed | p50 ms | p95 ms | × `["true"]` | × `["bash", "-c", "true"]` |',
    ]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for contender in rows:
        seen = samples[contender.name]
        if not seen.times_ns:
            lines.append(f"| {contender.label} | 0 | {len(seen.failures)} | {seen.failures[:1]} | | | |")
            continue
        p50, p95 = quantile(seen.times_ns, 0.5), quantile(seen.times_ns, 0.95)
        ratios = " | ".join(_times(p50, samples.get(name)) for name in (subprocess_run.TRUE, subprocess_run.BASH))
        lines.append(
            f"| {contender.label} | {len(seen.times_ns)} | {len(seen.failures)} | {p50 / 1e6:.3f} | {p95 / 1e6:.3f}"
            f" | {ratios} |"
        )
    return lines


def _times(p50: float, reference: Samples | None) -> str:
    return f"{p50 / quantile(reference.times_ns, 0.5):.2f}" if reference and reference.times_ns else ""


def _transfers(contenders: Sequence[Contender], samples: Mapping[str, Samples]) -> list[str]:
    rows = [c for c in contenders if c.name in samples and samples[c.name].times_ns]
    if not rows:
        return []
    lines = [
        "",
        "## Sixty-four MiB",
        "",
        "| what | n | failed | p50 MB/s | slowest 5 % below |",
        "|---|--:|--:|--:|--:|",
    ]
    for contender in rows:
        seen = samples[contender.name]
        rates = [transfer.rate_mb_s(quantile(seen.times_ns, q)) for q in (0.5, 0.95)]
        lines.append(
            f"| {contender.label} | {len(seen.times_ns)} | {len(seen.failures)} | {rates[0]:.0f} | {rates[1]:.0f} |"
        )
    return lines


def _many(results: Results) -> list[str]:
    lines = []
    if (flow := results.throughput) is not None:
        lines.append(
            f"- 8 in flight for {flow.seconds:.1f} s: {flow.finished} sandboxes created, used and destroyed"
            f" ({flow.rate_s:.0f}/s), {flow.failures} failed; left behind: {', '.join(flow.left) or 'nothing'}"
        )
    if (crowd := results.crowd) is not None:
        lines.append(
            f"- {crowd.boxes} alive: {crowd.bytes_each / 1024:.0f} KiB of machine memory each; creation"
            f" {crowd.first_ns / 1e6:.2f} ms at first, {crowd.last_ns / 1e6:.2f} ms at last; left behind:"
            f" {', '.join(crowd.left) or 'nothing'}"
        )
        lines.append(
            f"- idle for {crowd.idle_s:.0f} s: wake-ups {crowd.agents.wake_ups} (agents), {crowd.spawner.wake_ups}"
            f" (spawner), {crowd.owner.wake_ups} (this process, whose own timer ends the wait)"
        )
    return ["", "## Many at once", "", *lines] if lines else []
