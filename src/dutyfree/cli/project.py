"""`dutyfree project`: what the measured tax costs at training scale."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from dutyfree.cli.parser import Parser
from dutyfree.cli.report import require_statistics
from dutyfree.core.errors import Misuse
from dutyfree.core.text import printable

HELP = "what the tax costs at scale, from records"


def add_arguments(parser: Parser) -> None:
    """Its options."""
    add = parser.add_argument
    add("directory", type=Path, nargs="+", help="of records")
    add("--trajectories", default="1e4,1e5,1e6,1e7", metavar="N,…", help="how many (default: %(default)s)")
    add("--lengths", default="50,100,150,200,250,300", metavar="N,…", help="steps of each (default: %(default)s)")
    add("--workers", default="64,1024", metavar="N,…", help="in flight at the same time (default: %(default)s)")
    add(
        "--price", type=_price, default=0.10, metavar="X", help="of a worker-hour (default: %(default)s, an assumption)"
    )
    add("--json", action="store_true", help="for programs")
    add("--currency", default="USD", metavar="CODE", help="of the price (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    require_statistics()
    from dutyfree.meter.store import load  # noqa: PLC0415 - with the statistics below, only where they are used
    from dutyfree.meter.summary import results  # noqa: PLC0415
    from dutyfree.report.scale import Scale, tables  # noqa: PLC0415

    scale = Scale(
        trajectories=_numbers("--trajectories", args.trajectories),
        lengths=_numbers("--lengths", args.lengths),
        workers=_numbers("--workers", args.workers),
        price=args.price,
        currency=args.currency,
    )
    found = load(args.directory)
    if args.json:
        rows = [asdict(table) for table in tables(results(found.records), scale)]
        print(json.dumps({"warnings": [str(problem) for problem in found.problems], "tables": rows}, indent=2))
        return 0
    for problem in found.problems:
        print(f"warning: {printable(str(problem))}")
    for table in tables(results(found.records), scale):
        print(printable(table.to_markdown(), keep="\n"))
    return 0


def _price(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(int(float(part)) for part in text.split(","))
    except (ValueError, OverflowError) as error:
        raise Misuse(f"must be numbers separated by commas, not {text!r}", field=option) from error
    if any(value < 1 for value in values):
        raise Misuse(f"must be at least 1, not {text}", field=option)
    return values
