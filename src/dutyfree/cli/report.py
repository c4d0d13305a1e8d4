"""`dutyfree report`: tables, figures and one html page from the records of a run."""

from __future__ import annotations

import argparse
import importlib
import json
import os
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dutyfree.cli.parser import Parser
from dutyfree.core.errors import Unavailable
from dutyfree.core.text import printable

SHOWN_WARNINGS = 8

HELP = "tables, figures and html from records"


def add_arguments(parser: Parser) -> None:
    """Its options."""
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where the report goes (default: the first)")
    parser.add_argument(
        "directory",
        type=Path,
        nargs="+",
        help="of records; several runs of the same host are reported as one, in the first",
    )
    parser.add_argument("--json", action="store_true", help="what was written where, for programs")


def run(args: argparse.Namespace) -> int:
    """Write the report, show its headline, name its path."""
    require_statistics()
    from dutyfree.report.build import build  # noqa: PLC0415 - matplotlib and scipy, only where they are used

    report = build(args.directory, args.output)
    html = report.html.resolve()
    if args.json:
        words = {"sentence": report.sentence, "overhead": report.overhead, "warnings": list(report.warnings)}
        print(json.dumps({"html": str(html), "summary": str(html.with_name("summary.json")), **words}, indent=2))
        return 0
    table = RichTable(title=report.headline.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, column in enumerate(report.headline.columns):
        table.add_column(column, justify="left" if i < 3 else "right", no_wrap=True)
    for row in report.headline.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console()
    told = console.is_terminal or "COLUMNS" in os.environ
    wide = Console(width=None if told else 120, markup=False, highlight=False)
    wide.print(f"{printable(report.sentence)}\n")
    wide.print(table)
    print(report.overhead)
    for line in report.warnings[:SHOWN_WARNINGS]:
        print(f"warning: {printable(line)}")
    if len(report.warnings) > SHOWN_WARNINGS:
        print(f"and {len(report.warnings) - SHOWN_WARNINGS} more warnings, in the report")
    print(f"report: {html}")
    return 0


def require_statistics() -> None:
    """`Unavailable`, with the command, where the report's libraries are not installed."""
    for name in ("numpy", "scipy", "matplotlib", "jinja2"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise Unavailable(f"reports need {name}", enable="pip install 'dutyfree[report]'") from error
