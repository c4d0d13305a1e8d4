"""The manifest: the protocol of a run, complete enough that a stranger could repeat it or take it apart.

Owns what must agree before two invocations may fill the same directory (`identity`). The number of trials is not part
of that: more trials extend a run.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dutyfree import __version__
from dutyfree.core.errors import Misuse
from dutyfree.meter.action import digest
from dutyfree.meter.fingerprint import code, fingerprint
from dutyfree.meter.plan import Cell
from dutyfree.meter.record import SCHEMA, Profile
from dutyfree.meter.subject import Offer, Subject
from dutyfree.meter.workload import Workload

FORMULA = "T_rollout = T_create + T_ready + T_setup + sum(T_dispatch + T_run) + T_orchestration + T_reset + T_destroy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """The choices of one run."""

    seed: int
    cells: Sequence[tuple[Cell, int]]
    """With the number of trials each."""
    warmup: int
    deadline_s: float
    profile: Profile
    command: Sequence[str]
    """Command line as given, to repeat it."""


def build(
    protocol: Protocol,
    subjects: Mapping[str, Subject],
    workloads: Mapping[str, Workload],
    offers: Mapping[tuple[str, str], Offer],
) -> dict[str, Any]:
    """Collect the facts of a run that are not trials."""
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "dutyfree": __version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": code(),
        "host": fingerprint(),
        "protocol": _protocol(protocol),
        "workloads": {
            tier: {
                "description": work.description,
                "digest": {str(s): digest(work.actions(s)) for s in _lengths(protocol, tier)},
            }
            | ({"think_s": list(work.think_s)} if work.think_s else {})
            | _recorded(work)
            for tier, work in workloads.items()
        },
        "subjects": {
            label: {
                "name": subject.name,
                "version": subject.substrate.version,
                "dispatch": subject.dispatch,
                "stock": subject.substrate.stocked,
                "isolation": subject.substrate.capabilities.isolation,
                "hollow": subject.hollow,
                "networks": sorted(subject.substrate.capabilities.networks),
                "limits_enforced": sorted(subject.substrate.capabilities.limits),
                "tiers": {tier: offers[label, tier].to_dict() for tier in workloads if (label, tier) in offers},
            }
            for label, subject in subjects.items()
        },
    }
    manifest["identity"] = identity(manifest)
    return manifest


def identity(manifest: Mapping[str, Any]) -> str:
    """Equal for runs that may share a directory."""
    protocol = manifest["protocol"]
    parts = {
        "code": manifest["code"]["digest"],
        "host": manifest["host"]["id"],
        "protocol": {key: protocol[key] for key in ("seed", "cells", "warmup", "deadline_s", "profile")},
        "workloads": manifest["workloads"],
        "subjects": _without_counts(manifest, "subjects"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], directory: str) -> None:
    """Refuse to fill a directory with trials of another plan, naming what differs."""
    if old["identity"] == new["identity"]:
        return
    parts = [
        name
        for name in ("protocol", "workloads", "subjects")
        if _without_counts(old, name) != _without_counts(new, name)
    ]
    if old.get("code", {}).get("digest") != new["code"]["digest"]:
        parts.insert(0, "version of dutyfree")
    if old["host"]["id"] != new["host"]["id"]:
        parts.insert(0, "host")
    raise Misuse(
        f"{directory} holds a run with another {', '.join(parts) or 'plan'}; "
        "give the same options to resume it, or another directory",
        field="-o",
    )


def _protocol(protocol: Protocol) -> dict[str, Any]:
    return {
        "repetitions": {str(cell): count for cell, count in protocol.cells},
        "cells": sorted(str(cell) for cell, _ in protocol.cells),
        "seed": protocol.seed,
        "order": "randomised blocks: each block holds every cell once, shuffled by the seed; one cohort at a time",
        "clock": f"CLOCK_MONOTONIC through Python {sys.version.split()[0]} time.monotonic_ns",
        "warmup": protocol.warmup,
        "warmup_rule": "that many of the shortest trajectory per substrate and tier, first, recorded and not counted",
        "cache": "file caches warm after warm-up; nothing is dropped between trials",
        "deadline_s": protocol.deadline_s,
        "profile": protocol.profile,
        "failures": "recorded with their reason, counted in n, absent from the times; nothing is retried",
        "formula": FORMULA,
        "command": list(protocol.command),
    }


def _without_counts(manifest: Mapping[str, Any], name: str) -> Any:
    """A part of the manifest, less what may differ between two starts of the same run."""
    part = manifest[name]
    if name == "protocol":
        return {key: value for key, value in part.items() if key not in {"repetitions", "command", "clock"}}
    if name != "subjects":
        return part
    return {
        label: subject
        | {
            "tiers": {
                tier: {key: value for key, value in offer.items() if key not in {"image_bytes", "storage_seen"}}
                for tier, offer in subject["tiers"].items()
            }
        }
        for label, subject in part.items()
    }


def _recorded(work: Workload) -> dict[str, Any]:
    """The recording that a replay is compared with."""
    if work.surroundings is None:
        return {}
    return {"surroundings": work.surroundings.to_dict(), "exit_codes": list(work.exit_codes)}


def _lengths(protocol: Protocol, tier: str) -> list[int]:
    return sorted({cell.steps for cell, _ in protocol.cells if cell.tier == tier and cell.steps})
