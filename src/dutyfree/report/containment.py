"""Tables of the containment catalogue, from the verdicts that `dutyfree probe -o` saves beside a run's records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.report.text import Table

VERDICTS = "probes.json"
WORDS = {True: "contained", False: "NOT CONTAINED", None: "not tried"}


def keep(directory: Path, probed: Mapping[str, Any]) -> Path:
    """Put one substrate's verdicts with those that are there, in the place of earlier ones about the same."""
    others = []
    rows = {row["id"]: row for row in probed["probes"]}
    for one in kept(directory):
        if one["substrate"] != probed["substrate"]:
            others.append(one)
        elif all(one.get(name) == probed.get(name) for name in ("version", "image")):
            rows = {row["id"]: row for row in one["probes"]} | rows
    probed = {**probed, "probes": [rows[number] for number in sorted(rows)]}
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / VERDICTS
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps([*others, probed], indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
    return path


def kept(directory: Path) -> list[dict[str, Any]]:
    """Of every substrate that was probed into the directory."""
    path = directory / VERDICTS
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if all({"substrate", "version", "probes"} <= one.keys() for one in found):
            return list(found)
    except (ValueError, AttributeError, TypeError):
        pass
    raise Misuse(f"{path} is not what `dutyfree probe -o` writes", field="directory")


def tables(probed: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A row for each substrate, best first; then everything that was not contained or not tried, with what was seen."""
    if not probed:
        return [
            Table(
                title="Containment",
                columns=["substrate"],
                rows=[],
                note="Not probed in this run: `dutyfree probe -s SUBSTRATE -o DIR`.",
            )
        ]
    ranked = sorted(probed, key=lambda one: [_count(one, False), _count(one, None)])
    counts = Table(
        title="Containment: what each substrate held of the catalogue",
        columns=["substrate", "version", "image", *(word.lower() for word in WORDS.values())],
        rows=[
            [one["substrate"], one["version"], one.get("image", ""), *(str(_count(one, word)) for word in WORDS)]
            for one in ranked
        ],
        note="Judged by what the attempt did to the host or to a sibling, not by whether it failed inside.",
    )
    misses = Table(
        title="Containment: what was not held, or not tried",
        columns=["#", "probe", "substrate", "verdict", "what was seen"],
        rows=[
            [str(row["id"]), row["name"], one["substrate"], WORDS[row["contained"]], row["reason"]]
            for row, one in sorted(
                ((row, one) for one in probed for row in one["probes"] if row["contained"] is not True),
                key=lambda pair: (pair[0]["id"], pair[0]["contained"] is None, pair[1]["substrate"]),
            )
        ],
    )
    return [counts, misses]


def _count(one: Mapping[str, Any], word: bool | None) -> int:
    return sum(row["contained"] is word for row in one["probes"])
