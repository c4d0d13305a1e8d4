"""`dutyfree probe`: run the containment catalogue against substrates, and say what held.

Exit code 1 if anything was not contained. On a substrate that isolates nothing only harmless probes run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from dutyfree.core.contract import Substrate
from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.core.spec import Spec
from dutyfree.probe.catalogue import CATALOGUE, Probe, Verdict, judge
from dutyfree.probe.imaged import Imaged
from dutyfree.substrates.registry import connect

HELP = "the containment catalogue, run against substrates"

_WORDS = {True: "contained", False: "NOT CONTAINED", None: "not tried"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which substrates, which probes."""
    parser.add_argument(
        "-s", "--substrate", action="append", metavar="SUBSTRATE", help="what to probe; may be repeated (native)"
    )
    parser.add_argument("--only", metavar="N,N-N", help="numbers of the probes to run, as in 1,4,20-30; all by default")
    parser.add_argument(
        "--image", metavar="IMAGE", help="what the sandboxes start from (host, or bench where there is no host)"
    )
    parser.add_argument("--json", action="store_true", help="for programs; a list if several substrates were named")


def run(args: argparse.Namespace) -> int:
    """Probe each substrate in turn."""
    chosen = _chosen(args.only)
    reports = []
    for name in args.substrate or ["native"]:
        verdicts = asyncio.run(_probe(name, chosen, image=args.image, quiet=args.json))
        reports.append(_report(name, verdicts))
        if not args.json:
            _show(name, verdicts)
    if args.json:
        print(json.dumps(reports[0] if len(reports) == 1 else reports, indent=2))
    return int(any(row["contained"] is False for report in reports for row in report["probes"]))


async def _probe(name: str, chosen: list[Probe], *, image: str | None, quiet: bool) -> list[tuple[Probe, Verdict]]:
    verdicts = []
    async with connect(name) as connected:
        substrate = Imaged(connected, image or await _image(connected))
        for probe in chosen:
            if not quiet:
                print(f"  {name} {probe.label}", file=sys.stderr, flush=True)
            verdicts.append((probe, await judge(probe, substrate)))
    return verdicts


async def _image(substrate: Substrate) -> str:
    """The machine's own programs, unless the substrate cannot show them."""
    try:
        async with substrate.create(Spec(network="none" if "none" in substrate.capabilities.networks else "host")):
            return "host"
    except Unsupported:
        return "bench"


def _report(name: str, verdicts: list[tuple[Probe, Verdict]]) -> dict[str, Any]:
    rows = [
        {
            "id": probe.id,
            "name": probe.name,
            "group": probe.group,
            "contained": verdict.contained,
            "reason": verdict.reason,
        }
        for probe, verdict in verdicts
    ]
    return {"substrate": name, "probes": rows}


def _show(name: str, verdicts: list[tuple[Probe, Verdict]]) -> None:
    table = Table(title=name)
    for column in ("#", "group", "probe", "verdict", "what was seen"):
        table.add_column(column)
    for probe, verdict in verdicts:
        table.add_row(str(probe.id), probe.group, probe.name, _WORDS[verdict.contained], verdict.reason)
    Console().print(table)
    counts = [sum(verdict.contained is word for _, verdict in verdicts) for word in (True, False, None)]
    print(f"{name}: {counts[0]} contained, {counts[1]} not contained, {counts[2]} not tried")


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
