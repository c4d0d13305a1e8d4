"""`dutyfree stage`: build, list, show and remove the stages that start states are made of."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from dutyfree.cli.parser import Parser
from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import StageFailed
from dutyfree.core.settings import default_substrate
from dutyfree.core.text import printable
from dutyfree.substrates.registry import connect
from dutyfree.warm import load, open_pool
from dutyfree.warm.build import Step
from dutyfree.warm.ledger import Entry, Ledger
from dutyfree.warm.settings import Settings

HELP = "build, list and remove the stages of start states"


def add_arguments(parser: Parser) -> None:
    """The verbs."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    build = verbs.add_parser("build", help="build what a declaration asks for and is not there yet")
    build.add_argument("file", type=Path, help="TOML, or JSON if it is called .json")
    build.add_argument("--json", action="store_true", help="one JSON object a line for each stage")
    show = verbs.add_parser("list", help="what was built here, and whether it is still kept")
    show.add_argument("--json", action="store_true", help="for programs")
    log = verbs.add_parser("log", help="what the last build of a stage said")
    log.add_argument("key", help="a stage's key, or its beginning")
    drop = verbs.add_parser("remove", help="give a stage up; sandboxes that started from it are not disturbed")
    drop.add_argument("key", help="a stage's key, or its beginning")
    for verb in (build, show, log, drop):
        verb.add_argument(
            "-s", "--substrate", default=default_substrate(), help="where it is kept (default: %(default)s)"
        )


def run(args: argparse.Namespace) -> int:
    """Do what was asked; the exit code."""
    if args.verb == "log":
        print(printable(_ledger(args).read_log(args.key), keep="\n\t"), end="")
        return 0
    return asyncio.run({"build": _build, "list": _list, "remove": _remove}[args.verb](args))


async def _build(args: argparse.Namespace) -> int:
    spec = load(args.file)
    async with open_pool(args.substrate, settings=Settings(demand=False)) as pool:
        try:
            await pool.build(spec, _say_json if args.json else _say)
        except StageFailed as error:
            print(f"dutyfree: {printable(error.message)}; the log ends:\n{error.log_tail}", file=sys.stderr)
            print(f"dutyfree: the whole log: dutyfree stage log {error.key[:12]} -s {args.substrate}", file=sys.stderr)
            return 1
    return 0


def _say(step: Step) -> None:
    how = f"built in {step.took_s:.2f} s" if step.built else "was there already"
    print(f"{step.key[:12]}  {printable(step.name)}: {how}", flush=True)


def _say_json(step: Step) -> None:
    print(json.dumps(asdict(step)), flush=True)


async def _list(args: argparse.Namespace) -> int:
    async with connect(args.substrate) as substrate:
        rows = [(entry, await substrate.holds(SNAPSHOT_PREFIX + entry.key)) for entry in _ledger(args).entries()]
    if args.json:
        print(json.dumps([{**asdict(entry), "kept": kept} for entry, kept in rows], indent=2))
        return 0
    if not rows:
        print("no stages yet: `dutyfree stage build FILE`, or Spec(stages=…) on warm:X, builds them")
        return 0
    for entry, kept in rows:
        print(_line(entry, kept))
    return 0


def _line(entry: Entry, kept: bool) -> str:
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made_s))
    what = f"{entry.key[:12]}  {made}  {entry.took_s:8.2f} s  {entry.kind:<10}  {printable(entry.name)}"
    return f"{what}, on {printable(entry.image)}" + ("" if kept else "  (not kept any more)")


async def _remove(args: argparse.Namespace) -> int:
    key = _ledger(args).find(args.key)
    async with open_pool(args.substrate, settings=Settings(demand=False)) as pool:
        await pool.remove_stage(key)
    print(f"{key[:12]}: removed")
    return 0


def _ledger(args: argparse.Namespace) -> Ledger:
    """Open the ledger under the substrate's own name, which options written after it do not change."""
    return Ledger(args.substrate.partition("?")[0])
