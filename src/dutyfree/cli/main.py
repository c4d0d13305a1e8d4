"""`dutyfree`: finds the subcommand, runs it, and turns errors into one line and an exit code.

Each subcommand is a module of this package that has

    HELP: str                                              one line, the same as its row in `COMMANDS`
    def add_arguments(parser: argparse.ArgumentParser)     its options (dests other than `command`)
    def run(args: argparse.Namespace) -> int               do it; the exit code

and a row in `COMMANDS`. Only the module that was asked for is imported. Modules raise `DutyfreeError`s and let them
pass: `errors` classifies, once, here.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from dutyfree import __version__
from dutyfree.cli.errors import guard

COMMANDS = {
    "doctor": "what this machine can run, and the exact command that enables the rest",
    "run": "one command in a fresh sandbox",
    "image": "build, import, pull, export, list, verify and remove images of the native substrate",
    "measure": "measure substrates, and write the records down",
    "report": "tables, figures and html from records",
    "project": "what the tax costs at scale, from records",
    "probe": "the containment catalogue, run against substrates",
    "simulate": "the scheduler, at a scale this machine does not have",
}
"""Subcommand to its one line; the module has the same name. Those whose module is not here are not shown."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    return guard(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="dutyfree", description="Measure the infrastructure tax of agent rollouts, and stop paying it."
    )
    parser.add_argument("--version", action="version", version=f"dutyfree {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name, line in installed().items():
        child = commands.add_parser(name, help=line, description=line)
        if name == asked:
            # The others keep an empty parser: enough for `--help`, and their imports are not paid for.
            importlib.import_module(f"dutyfree.cli.{name}").add_arguments(child)
    args = parser.parse_args(argv)
    code: int = importlib.import_module(f"dutyfree.cli.{args.command}").run(args)
    return code


def installed() -> dict[str, str]:
    """The subcommands whose module is part of this installation."""
    return {name: line for name, line in COMMANDS.items() if find_spec(f"dutyfree.cli.{name}") is not None}


if __name__ == "__main__":
    sys.exit(main())
