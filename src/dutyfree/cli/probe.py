"""`dutyfree probe`: run the containment catalogue against substrates, and say what held.

Exit code 1 if anything was not contained. On a substrate that isolates nothing only harmless probes run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dutyfree.cli.parser import Appending, Parser
from dutyfree.core.errors import DutyfreeError, Misuse
from dutyfree.core.settings import default_substrate
from dutyfree.core.text import printable
from dutyfree.probe.catalogue import CATALOGUE, Probe, Verdict, judge
from dutyfree.probe.imaged import Imaged, choose_image
from dutyfree.report.containment import WORDS, keep
from dutyfree.substrates.registry import connect

HELP = "the containment catalogue, run against substrates"


def add_arguments(parser: Parser) -> None:
    """Which substrates, which probes."""
    parser.add_argument(
        "-s",
        "--substrate",
        action=Appending,
        metavar="SUBSTRATE",
        help="what to probe; may be repeated (default: the default substrate)",
    )
    parser.add_argument("--only", metavar="N,N-N", help="numbers of the probes to run, as in 1,4,20-30; all by default")
    parser.add_argument(
        "--image", metavar="IMAGE", help="what the sandboxes start from (host, or bench where there is no host)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="keep the verdicts there too, for `dutyfree report DIR`"
    )
    parser.add_argument("--json", action="store_true", help="for programs; a list if several substrates were named")


def run(args: argparse.Namespace) -> int:
    """Probe each substrate in turn."""
    chosen = _chosen(args.only)
    reports = []
    for name in args.substrate or [default_substrate()]:
        report = asyncio.run(_probe(name, chosen, image=args.image, quiet=args.json))
        reports.append(report)
        if args.output is not None:
            keep(args.output, report)
        if not args.json:
            _show(report)
    if args.json:
        print(json.dumps(reports[0] if len(reports) == 1 else reports, indent=2))
    return int(any(row["contained"] is False for report in reports for row in report["probes"]))


async def _probe(name: str, chosen: list[Probe], *, image: str | None, quiet: bool) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    try:
        async with connect(name) as connected:
            image = image or await choose_image(connected)
            report = {"substrate": name, "version": connected.version, "image": image, "probes": rows}
            substrate = Imaged(connected, image)
            for probe in chosen:
                if not quiet:
                    print(f"  {name} {probe.label}", file=sys.stderr, flush=True)
                rows.append(_row(probe, await judge(probe, substrate)))
    except DutyfreeError as error:
        if len(rows) < len(chosen):
            raise
        print(f"{name}: not everything could be cleaned up: {error}", file=sys.stderr)
    return report


def _row(probe: Probe, verdict: Verdict) -> dict[str, Any]:
    return {
        "id": probe.id,
        "name": probe.name,
        "group": probe.group,
        "contained": verdict.contained,
        "reason": verdict.reason,
    }


def _show(report: dict[str, Any]) -> None:
    table = Table(title=Text(report["substrate"]))
    for column in ("#", "group", "probe", "verdict", "what was seen"):
        table.add_column(column)
    for row in report["probes"]:
        cells = (str(row["id"]), row["group"], row["name"], WORDS[row["contained"]], row["reason"])
        # As text: what was seen comes from sandboxes, and rich would read brackets in it as styles and links.
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console().print(table)
    seen = [row["contained"] for row in report["probes"]]
    counts = ", ".join(f"{seen.count(word)} {name.lower()}" for word, name in WORDS.items())
    print(f"{report['substrate']}: {counts}")


def _chosen(only: str | None) -> list[Probe]:
    if only is None:
        return list(CATALOGUE)
    numbers: set[int] = set()
    for part in only.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise Misuse(f"{part!r} is no number or range", field="--only")
        numbers.update(range(int(first), int(last or first) + 1))
    found = [probe for probe in CATALOGUE if probe.id in numbers]
    if not found:
        raise Misuse("the catalogue has none of these numbers", field="--only")
    return found
