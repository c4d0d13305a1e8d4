"""`dutyfree simulate`: the scheduler and its baselines, at a scale this machine does not have."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dutyfree.cli.parser import Parser
from dutyfree.cli.report import require_statistics
from dutyfree.core.errors import Misuse
from dutyfree.warm.simulate.scenario import Scenario, from_json

HELP = "the scheduler, at a scale this machine does not have"

_OPTIONS = (
    ("nodes", int, "machines"),
    ("slots", int, "rollouts that a node runs at once"),
    ("tasks", int, "start states that rollouts ask for"),
    ("groups", int, "groups of rollouts"),
    ("group", int, "rollouts in a group: they start together, from one task's state"),
    ("skew", float, "of the tasks' popularity (Zipf's exponent; 0: all alike)"),
    ("load", float, "share of all slots that rollouts arrive for"),
    ("in_flight", int, "groups in flight, the next arriving when one is done, instead of --load"),
    ("run_s", float, "seconds of a rollout, once ready (median)"),
    ("idle", int, "idle sandboxes a node keeps"),
    ("cache_gb", float, "layers a node keeps"),
    ("pull_mb_s", float, "how fast layers are pulled from other nodes (not at all)"),
    ("look", int, "holders of a state that a choice looks at"),
)


def add_arguments(parser: Parser) -> None:
    """Its options."""
    add = parser.add_argument
    for name, kind, text in _OPTIONS:
        default = getattr(Scenario(), name)
        shown = "" if default is None else f" (default: {default:g})"
        add(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text + shown)
    add("--scenario", type=Path, metavar="FILE", help="JSON with these and the stages' costs; options go before it")
    add("--records", type=Path, metavar="DIR", help="take create, set-up, run and reset from what was measured there")
    add("--substrate", default="native", metavar="S", help="of the records (default: %(default)s)")
    add("--policy", metavar="P,…", help="which to compare (default: all)")
    add("--seed", type=int, default=1, metavar="N", help="of everything that is drawn (default: %(default)s)")
    add("-o", "--output", type=Path, metavar="DIR", help="write simulation.json and the figure there")
    add("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    """Simulate each policy on the same draw."""
    require_statistics()
    from dutyfree.warm.simulate.outcome import document  # noqa: PLC0415 - numpy, only where it is used

    scenario = _scenario(args)
    found = document(scenario, args.seed, *_simulate(scenario, args))
    if args.output is not None:
        from dutyfree.report.simulation import write  # noqa: PLC0415 - matplotlib, likewise

        path = write(found, args.output)
        print(f"figure: {path.resolve()}", file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        from dutyfree.report.simulation import table  # noqa: PLC0415

        print(table(found).to_markdown())
    return 0


def _simulate(scenario: Scenario, args: argparse.Namespace) -> tuple[float, list[dict[str, Any]]]:
    from dutyfree.warm.simulate.engine import simulate  # noqa: PLC0415
    from dutyfree.warm.simulate.outcome import row  # noqa: PLC0415
    from dutyfree.warm.simulate.route import POLICIES, route  # noqa: PLC0415
    from dutyfree.warm.simulate.workload import draw  # noqa: PLC0415

    policies = [part.strip() for part in args.policy.split(",")] if args.policy else list(POLICIES)
    for policy in policies:
        route(policy, args.seed)
    workload = draw(scenario, args.seed)
    rows = []
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for policy in policies:
            task = bar.add_task(policy, total=scenario.rollouts)
            progress = partial(_show, bar, task)
            rows.append(row(policy, simulate(scenario, workload, policy, seed=args.seed, progress=progress)))
            bar.update(task, completed=scenario.rollouts)
    return workload.once_s(scenario.group), rows


def _show(bar: Progress, task: TaskID, over: int) -> None:
    bar.update(task, completed=over)


def _scenario(args: argparse.Namespace) -> Scenario:
    values: dict[str, Any] = {}
    if args.scenario is not None:
        try:
            values = json.loads(args.scenario.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Misuse(f"cannot be read: {error}", field="--scenario") from error
    scenario = from_json(values)
    if args.records is not None:
        from dutyfree.cli.measured import measured  # noqa: PLC0415 - statistics, only where they are used

        scenario = measured(scenario, args.records, args.substrate)
    given = {name: value for name, _, _ in _OPTIONS if (value := getattr(args, name)) is not None}
    return replace(scenario, **given)
