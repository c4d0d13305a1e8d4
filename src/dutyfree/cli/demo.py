"""`dutyfree demo`: shows a short program that computes a reward, and runs it."""

from __future__ import annotations

import argparse
import os
import runpy
import time
from pathlib import Path

from dutyfree.cli.parser import Parser
from dutyfree.core.settings import default_substrate

HELP = "a rollout with a reward in twenty lines, shown and run"
PROGRAM = Path(__file__).with_name("rollout.py")


def add_arguments(parser: Parser) -> None:
    """Its options."""
    add = parser.add_argument
    add("-s", "--substrate", default=default_substrate(), help="where to run it (default: %(default)s)")
    add("--source", action="store_true", help="show the program and do not run it: dutyfree demo --source > rollout.py")


def run(args: argparse.Namespace) -> int:
    """Show it and run it."""
    print(PROGRAM.read_text(encoding="utf-8"), end="", flush=True)
    if args.source:
        return 0
    print("\n# What it says:", flush=True)
    os.environ["DUTYFREE_SUBSTRATE"] = args.substrate  # `connect()` in the program reads it
    start = time.monotonic()
    runpy.run_path(str(PROGRAM), run_name="__main__")
    print(
        f"\n# {time.monotonic() - start:.2f} s. To change it: dutyfree demo --source > rollout.py; python3 rollout.py"
    )
    return 0
