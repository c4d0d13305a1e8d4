"""`dutyfree`: finds the subcommand, runs it, and turns errors into one line and an exit code.

Each subcommand is a module of this package that has

    HELP: str                                              one line, the same as its row in `COMMANDS`
    def add_arguments(parser: Parser)                      its options (dests other than `command`)
    def run(args: argparse.Namespace) -> int               do it; the exit code

and a row in `COMMANDS`. Only the module that was asked for is imported. Modules raise
`DutyfreeError`s and let them pass: `errors` classifies, once, here.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from dutyfree import __version__
from dutyfree.cli.errors import NOT_STARTED, guard
from dutyfree.cli.parser import Parser
from dutyfree.core.errors import Misuse
from dutyfree.core.settings import file_content, file_place, suggestion

COMMANDS = {
    "doctor": "what this machine can run, and the exact command that enables the rest",
    "demo": "a rollout with a reward in twenty lines, shown and run",
    "run": "one command in a fresh sandbox",
    "image": "build, import, pull, export, list, verify and remove images of the native substrate",
    "stage": "build, list and remove the stages of start states",
    "measure": "measure substrates, and write the records down",
    "report": "tables, figures and html from records",
    "project": "what the tax costs at scale, from records",
    "probe": "the containment catalogue, run against substrates",
    "simulate": "the scheduler, at a scale this machine does not have",
    "completion": "a script with which your shell completes dutyfree's commands and options",
}
"""Subcommand to its one line; the module has the same name. `--help` shows those that are installed."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    words = sys.argv[1:] if argv is None else list(argv)
    return guard(lambda: _main(words), failure=NOT_STARTED if _asked(words) == "run" else None)


def _main(argv: list[str]) -> int:
    asked = _asked(argv)
    parser = command_line(() if asked is None else (asked,))
    child = parser.children.get(asked or "")
    if asked is not None and child is None:
        hint = suggestion(asked, list(parser.children)) or "; see: dutyfree --help"
        parser.error(f"invalid choice: {asked!r}{hint}")
    if asked == "run":
        parser.misuse_code = NOT_STARTED
    if child is not None:
        child.misuse_code = parser.misuse_code
        child.take_defaults(_defaults(asked or ""), str(file_place(os.environ)))
    args = parser.parse_args(argv)
    if args.verbose:
        _log(args.verbose)
    code: int = importlib.import_module(f"dutyfree.cli.{args.command}").run(args)
    return code


def command_line(complete: Sequence[str]) -> Parser:
    """The parser. Only the `complete` subcommands have their options, and pay for their imports."""
    parser = Parser(
        prog="dutyfree", description="Measure the infrastructure tax of agent rollouts, and stop paying it."
    )
    parser.add_argument("-V", "--version", action="version", version=f"dutyfree {__version__}")
    _add_verbose(parser, default=0)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, line in installed().items():
        child = commands.add_parser(name, help=line, description=line)
        if name in complete:
            importlib.import_module(f"dutyfree.cli.{name}").add_arguments(child)
            _add_verbose(child, default=argparse.SUPPRESS)
    return parser


def installed() -> dict[str, str]:
    """The subcommands whose module is part of this installation."""
    return {name: line for name, line in COMMANDS.items() if find_spec(f"dutyfree.cli.{name}") is not None}


def _asked(argv: Sequence[str]) -> str | None:
    return next((word for word in argv if not word.startswith("-")), None)


def _add_verbose(parser: Parser, *, default: Any) -> None:
    parser.add_argument(
        "-v", "--verbose", action="count", default=default, help="tell on stderr what happens; -vv: in detail"
    )


def _defaults(command: str) -> dict[str, Any]:
    """Read the config file's defaults for the options of this command."""
    content = file_content(os.environ)
    for name, value in content.items():
        if isinstance(value, dict) and name not in COMMANDS:
            raise Misuse(
                f"[{name}] is not a command{suggestion(name, list(COMMANDS))}", field=str(file_place(os.environ))
            )
    found = content.get(command, {})
    return dict(found)


def _log(verbosity: int) -> None:
    """Show the library's log on stderr."""
    import logging  # noqa: PLC0415 - few ask for it

    logger = logging.getLogger("dutyfree")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(name)s: %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)


if __name__ == "__main__":
    sys.exit(main())
