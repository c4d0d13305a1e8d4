"""Doubts about a result, each with what to do next. A result without doubts is not thereby right, only quiet.

Judges results that are already made; changes none.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from scipy import stats

from dutyfree.meter.summary import REFERENCE, Result

WIDE = 0.05
"""Half-width of the median's interval, as a share of it."""
FEW = 8
MOST = 300
"""Trials that are suggested at most."""
STOLEN = 0.01
TAIL = 3.0
"""p95 over p50."""


def doubts(found: Sequence[Result], manifest: Mapping[str, Any], directory: str) -> list[str]:
    """List the doubts that a sceptic would have about these results."""
    again = _command(manifest, directory)
    lines = [line for result in found if not _hollow(result, manifest) for line in _of_result(result)]
    if not any(result.key.substrate == REFERENCE for result in found):
        lines.append(f"no tax: the host reference was not measured; {beside(manifest, directory, REFERENCE)}")
    lines = _replays(found, manifest) + lines
    solid = [r for r in found if r.lasting and not _hollow(r, manifest)]
    lines += _wide(solid, again) + _few(solid, again) + _busy(solid, manifest)
    return _media(manifest) + lines + _software(manifest) + _routes(manifest)


def _wide(found: Sequence[Result], again: str) -> list[str]:
    """Medians that more trials would settle."""
    widths = {_what(r): (_half_width(r), len(r.times)) for r in found if len(r.times) >= FEW and _half_width(r) > WIDE}
    if not widths:
        return []
    worst = max(widths, key=lambda name: widths[name])
    enough = max(n * (half / WIDE) ** 2 for half, n in widths.values())
    trials = min(MOST, 10 * math.ceil(enough / 10))
    what = f"{len(widths)} of {len(found)} medians are known to no better than {WIDE:.0%}"
    return [f"{what}, the worst ({worst}) to {widths[worst][0]:.0%}; `{again} --trials {trials}`"]


def _half_width(result: Result) -> float:
    found = result.summary
    if found is None or found.ci_p50 is None or not found.p50 or not math.isfinite(found.ci_p50[1]):
        return 0.0
    return (found.ci_p50[1] - found.ci_p50[0]) / 2 / found.p50


def _busy(found: Sequence[Result], manifest: Mapping[str, Any]) -> list[str]:
    """Others were using the machine."""
    lines = []
    load, cpus = manifest["host"]["load_1min"], manifest["host"]["cpus"]
    if load > cpus / 2:
        lines.append(f"the machine was busy at the start (load {load:g} on {cpus} cores); repeat when it is calm")
    worst = max(found, key=lambda r: r.steal_share, default=None)
    if worst is not None and worst.steal_share > STOLEN:
        share = f"{worst.steal_share:.1%} of a core during {_what(worst)}"
        lines.append(f"the hypervisor gave processor time to others, up to {share}; repeat on a calmer machine")
    return lines


def _few(found: Sequence[Result], again: str) -> list[str]:
    rows = [r for r in found if len(r.times) < FEW]
    if not rows:
        return []
    names = ", ".join(_what(r) for r in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
    return [f"fewer than {FEW} trials, from which nothing is concluded: {names}; `{again} --trials 30`"]


def _what(result: Result) -> str:
    key = result.key
    what = "cold start" if key.steps == 0 else f"{key.steps} steps"
    return f"{result.title} {key.tier} {what}" + (f", {key.parallel} at once" if key.parallel > 1 else "")


def _hollow(result: Result, manifest: Mapping[str, Any]) -> bool:
    return any(s["hollow"] for s in manifest["subjects"].values() if s["name"] == result.key.substrate)


def _of_result(result: Result) -> list[str]:
    lines: list[str] = []
    if result.failures:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(result.failures.items()))
        lines.append(f"{_what(result)}: {result.failed} of {result.n} trials failed ({kinds}); see records.jsonl")
    found = result.summary
    if found is None:
        return lines
    if not result.lasting:
        lines.append(f"{_what(result)}: half of the trials or more failed, so it has no median and no tax")
    elif found.p95 is not None and math.isfinite(found.p95) and found.p95 > TAIL * found.p50:
        lines.append(f"{_what(result)}: p95 is {found.p95 / found.p50:.1f} x p50; look for neighbours or a cold cache")
    if drift := _drift(result.times):
        lines.append(f"{_what(result)}: times {drift} during the run; repeat on a calm machine, or with `--warmup 3`")
    return lines


def _replays(found: Sequence[Result], manifest: Mapping[str, Any]) -> list[str]:
    """Replays whose commands did not do what they had done, or may not have: the first doubt of all."""
    lines = []
    for result in found:
        recorded = manifest["workloads"].get(result.key.tier, {})
        if "surroundings" in recorded and not _hollow(result, manifest):
            lines += _replay(result, recorded["surroundings"]["missing"], recorded["exit_codes"])
    return lines


def _replay(result: Result, missing: Sequence[str], wanted: Sequence[int | None]) -> list[str]:
    lines = []
    if missing:
        lines.append(
            f"{_what(result)}: replayed without its own {', '.join(missing)}: its times are not those of the recorded work"
        )
    pairs = [pair for codes in result.exit_codes for pair in zip(codes, wanted, strict=False)]
    unlike = sum(had is not None and code != had for code, had in pairs)
    failed = sum(had is None and code != 0 for code, had in pairs)
    if unlike:
        known = sum(had is not None for _, had in pairs)
        lines.append(
            f"{_what(result)}: {unlike} of {known} commands ended otherwise than in the recording; compare nothing"
        )
    if failed:
        unknown = sum(had is None for _, had in pairs)
        lines.append(
            f"{_what(result)}: {failed} of {unknown} commands failed, and the recording does not say if they should"
        )
    return lines


def _drift(times: Sequence[float]) -> str | None:
    """A rank correlation of time with order that chance does not explain."""
    if len(times) < 20 or len(set(times)) < 2:
        return None
    test = stats.spearmanr(range(len(times)), times)
    if test.pvalue > 1e-3 or abs(test.statistic) < 0.4:
        return None
    return "rose" if test.statistic > 0 else "fell"


def _software(manifest: Mapping[str, Any]) -> list[str]:
    """Substrates whose programs are not those of the host reference."""
    reference = manifest["subjects"].get(REFERENCE, {}).get("tiers", {})
    lines: list[str] = []
    for name, subject in manifest["subjects"].items():
        for tier, offer in subject["tiers"].items():
            here, there = offer["software"], reference.get(tier, {}).get("software", {})
            unlike = sorted(k for k in here.keys() & there.keys() if here[k] != there[k])
            if offer["offered"] and unlike and not subject["hollow"]:
                what = ", ".join(f"{k} ({here[k]}, on the host {there[k]})" for k in unlike)
                lines.append(f"{name} {tier}: other software than the host: {what}; part of the tax may be that")
    return lines


def _media(manifest: Mapping[str, Any]) -> list[str]:
    """Substrates that write elsewhere than they say, or elsewhere than the reference: a disk is no isolation."""
    lines: list[str] = []
    media: dict[str, set[str]] = {}
    for name, subject in manifest["subjects"].items():
        offers = [offer for offer in subject["tiers"].values() if offer["offered"] and not subject["hollow"]]
        seen = {offer.get("storage_seen") or offer.get("storage") for offer in offers} - {None}
        wrong = sorted(
            f"{offer['storage']} is declared, {offer['storage_seen']} was seen"
            for offer in offers
            if offer.get("storage_seen") not in (None, offer.get("storage"))
        )
        if wrong:
            lines.append(f"{name} does not write where it says: {wrong[0]}")
        for medium in seen:
            media.setdefault(medium, set()).add(name)
    if len(media) > 1:
        each = "; ".join(f"{medium}: {', '.join(sorted(names))}" for medium, names in sorted(media.items()))
        lines.append(f"not all write to the same medium ({each}); part of the differences is the disk's")
    return lines


def _routes(manifest: Mapping[str, Any]) -> list[str]:
    """Substrates from which the git server was not reached."""
    names = sorted(
        f"{name} {tier}"
        for name, subject in manifest["subjects"].items()
        for tier, offer in subject["tiers"].items()
        if offer.get("route") == "upload" and not subject["hollow"]
    )
    how = "no way to the git server; set-up uploads the repository and clones that"
    return [f"{', '.join(names)}: {how}"] if names else []


def beside(manifest: Mapping[str, Any], directory: str, substrate: str) -> str:
    """Commands that put one more substrate in the report of a run: a directory holds one plan, and cannot take it."""
    other = f"{directory.rstrip('/')}-{substrate}"
    again = _command(manifest, other, dropped={"-s", "--substrate", "--trials-for"}, added=("-s", substrate))
    return f"`{again}`, then `{shlex.join(['dutyfree', 'report', directory, other])}`"


def _command(
    manifest: Mapping[str, Any],
    directory: str,
    *,
    dropped: AbstractSet[str] = frozenset({"--trials", "--trials-for"}),
    added: Sequence[str] = (),
) -> str:
    """The run's own command, ready to be extended."""
    valued = {"-o", "--output", *dropped}
    words = iter(manifest["protocol"]["command"])
    kept: list[str] = []
    for word in words:
        if word in valued:
            next(words, None)
        elif word.partition("=")[0] not in valued and not (word[:2] in valued and word[1] != "-"):
            kept.append(word)
    return shlex.join(["dutyfree", "measure", *kept, *added, "-o", directory])
