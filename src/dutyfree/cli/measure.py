"""`dutyfree measure`: runs the study on the substrates of this machine, and writes every trial down as it happens."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dutyfree.cli.parser import Appending, Parser
from dutyfree.core.contract import Capabilities, Driver
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.core.spec import Limits
from dutyfree.core.text import printable
from dutyfree.meter import campaign
from dutyfree.meter.campaign import Choices, Prepared
from dutyfree.meter.plan import Cohort
from dutyfree.meter.record import Record
from dutyfree.meter.subject import IMAGES, Subject
from dutyfree.meter.workload import Surroundings, Workload
from dutyfree.meter.workloads import ability, live, loop, material, staged, tier0, tier1, tier2, trace
from dutyfree.meter.workloads.gitserver import GitServer
from dutyfree.substrates import registry

HELP = "measure substrates, and write the records down"

TIERS = ("T0", "T1", "T2")
MORE_TIERS = ("reset", "fork", live.TIER, *(f"T2@{stage}" for stage in staged.STAGES))
"""Measured when they are asked for."""

SETTLE_S = 3.0
_STEP_COST_S = {"T0": 0.003, "T1": 0.012, "T2": 0.09}
"""Rough time of one action, for the first guess of how long it will take."""


def add_arguments(parser: Parser) -> None:
    """Its options."""
    add = parser.add_argument
    add(
        "-s", "--substrate", action=Appending, metavar="S", help="a substrate, as in native or docker?dispatch=api; "
        "repeat it (default: all that this machine has, but for what is paid for or emulated)",
    )  # fmt: skip
    add("-o", "--output", type=Path, required=True, metavar="DIR", help="where records go; a run there is resumed")
    add("--tier", default=",".join(TIERS), metavar="T,…", help=f"which workloads (default: %(default)s); "
        f"also {', '.join(MORE_TIERS)}")  # fmt: skip
    add("--steps", default="0,10,50,150", metavar="N,…", help="actions per trajectory, 0 = cold start (%(default)s)")
    add("--trials", type=_positive, metavar="N", help="of each configuration (default: 100, less with --quick)")
    add("--trials-for", action=Appending, default=[], metavar="S=N", help="another number for one substrate, such as a slow "
        "one; repeat it")  # fmt: skip
    add("--quick", action="store_true", help="few trials: about two minutes on a bare machine; of substrates "
        "that are not named, container engines get T0 only and slower ones nothing")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="of the order of trials (default: %(default)s)")
    add("--parallel", default="1", metavar="N,…", help="rollouts in flight together; 1,8 measures both (%(default)s)")
    add("--warmup", type=_count, default=1, metavar="N", help="warm-up trials per substrate and tier (%(default)s)")
    add("--settle", type=_pause, metavar="SECONDS", help="longest wait before each trial until the machine is quiet (default: "
        f"{SETTLE_S:g}, with --quick 0)")  # fmt: skip
    add("--deadline", type=_seconds, default=600.0, metavar="SECONDS", help="of one trial (default: %(default)s)")
    add("--profile", choices=["controlled", "optimised"], default="controlled", help="fresh sandbox and full set-up "
        "each time, or fork and reset where offered (default: %(default)s)")  # fmt: skip
    add("--image", default=",".join(IMAGES), metavar="I,…", help="for each substrate the first of these that it knows "
        "(default: %(default)s)")  # fmt: skip
    add("--cpus", type=float, metavar="N", help="limit each sandbox, where the substrate can")
    add("--memory-mib", type=_positive, metavar="N", help="limit each sandbox, where the substrate can")
    add("--storage", choices=["memory", "disk"], default="memory", help="where sandboxes write (default: %(default)s)")
    add("--json", action="store_true", help="end with one JSON object instead of two lines")
    add("--think", type=_pause, default=0.1, metavar="FACTOR", help="of real agents' think times in the tier live: 1 pauses as they do, "
        "0 not at all (default: %(default)s)")  # fmt: skip
    add("--loop", action="store_true", help="a whole small RL training run per trial, instead of the tiers")
    add("--trace", type=Path, metavar="FILE", help="replay a recorded trajectory instead of the tiers")
    add("--trace-image", metavar="I", help="the image it ran in, where the file does not say")
    add("--trace-cwd", metavar="DIR", help="the directory it ran in, where the file does not say")
    add(
        "--trace-shell",
        metavar="WORDS",
        help="the shell that ran its commands, as in 'bash -lc', where the file does not say",
    )
    add(
        "--trace-repo",
        type=Path,
        metavar="DIR",
        help="a local tree to upload to that directory, where the image has none",
    )
    add("--trace-anywhere", action="store_true", help="replay it without knowing these; the report marks it")
    add("--trace-unisolated", action="store_true", help="replay it also on the bare host: its commands run as you")
    add("--repo", metavar="URL", help="measure T1 and T2 on this repository instead; needs the next three")
    add("--commit", metavar="ID", help="of the repository: where the bug is")
    add("--patch", type=Path, metavar="FILE", help="fixes the bug")
    add("--test", metavar="CMD", help="fails before the patch, passes after it")


def run(args: argparse.Namespace) -> int:
    """Measure; 130 if interrupted, with everything kept."""
    console = progress_console()
    try:
        return asyncio.run(_measure(args, console))
    except KeyboardInterrupt:
        console.print(f"interrupted; everything measured is in {args.output}. The same command goes on from there.")
        return 130


def progress_console() -> Console:
    """Make the console for what is told beside the result; brackets in commands are no markup."""
    return Console(stderr=True, markup=False, highlight=False)


async def _measure(args: argparse.Namespace, console: Console) -> int:
    names = args.substrate or _available(console, quick=args.quick)
    choices = _choices(args, unasked=frozenset(() if args.substrate else names))
    workloads = _workloads(args, console)
    async with AsyncExitStack() as stack:
        subjects = [await _connect(name, stack) for name in names]
        if len({subject.label for subject in subjects}) != len(subjects):
            raise Misuse("names the same substrate twice", field="--substrate")
        server = None
        if served := [w.clone.served for w in workloads if w.clone is not None]:
            server = await stack.enter_async_context(GitServer(served[0]))
        prepared = await campaign.prepare(args.output, subjects, workloads, choices, server)
        _announce(prepared, console)
        failed = await _run(args.output, prepared, choices, console)
    trials = sum(len(cohort) for cohort in prepared.todo)
    if args.json:
        told = {"directory": str(args.output), "trials": trials, "there_before": prepared.done, "failed": failed}
        print(json.dumps(told))
        return 0
    print(f"{trials} trials measured, {prepared.done} were there before, {failed} failed: {args.output}")
    print(f"next: dutyfree report {args.output}")
    return 0


async def _run(directory: Path, prepared: Prepared, choices: Choices, console: Console) -> int:
    failed = 0
    columns = (
        TextColumn("{task.description}", justify="left"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as bar:
        task = bar.add_task("measuring", total=sum(_weight(c) for c in prepared.todo), note="")

        def progress(cohort: Cohort, records: list[Record]) -> None:
            nonlocal failed
            for record in records:
                if not record.ok:
                    failed += 1
                    bar.console.print(
                        f"failed: {record.id}: {record.failure_kind}: {printable(record.failure_message or '')}"
                    )
            note = f"{failed} failed" if failed else ""
            bar.update(task, advance=_weight(cohort), description=str(cohort[0].cell), note=note)

        await campaign.run(directory, prepared, choices, progress=progress)
    return failed


def _weight(cohort: Cohort) -> float:
    cell = cohort[0].cell
    if cell.substrate == "noop":
        return 0.01
    return len(cohort) * (0.02 + (cell.steps + 4) * _STEP_COST_S.get(cell.tier, 0.05))


def _choices(args: argparse.Namespace, unasked: frozenset[str]) -> Choices:
    memory = args.memory_mib * (1 << 20) if args.memory_mib else None
    return Choices(
        steps=_numbers("--steps", args.steps, low=0),
        trials=args.trials,
        trials_for=dict(_trials_for(given) for given in args.trials_for),
        quick=args.quick,
        seed=args.seed,
        parallel=_numbers("--parallel", args.parallel, low=1),
        warmup=args.warmup,
        deadline_s=args.deadline,
        profile=args.profile,
        images=tuple(args.image.split(",")),
        limits=Limits(cpus=args.cpus, memory_bytes=memory),
        storage=args.storage,
        command=_given(sys.argv),
        unasked=unasked,
        unisolated_trace=args.trace_unisolated,
        settle_s=args.settle if args.settle is not None else (0.0 if args.quick else SETTLE_S),
    )


def _given(argv: Sequence[str]) -> list[str]:
    """The options as they were typed."""
    return list(argv[argv.index("measure") + 1 :]) if "measure" in argv else []


def _workloads(args: argparse.Namespace, console: Console) -> list[Workload]:
    if args.trace is not None:
        return [_replay(args)]
    if args.loop:
        with console.status("preparing the repository (fetched once, then cached)"):
            return [loop.workload(material.attrs_project())]
    tiers = [tier.strip() for tier in args.tier.split(",") if tier.strip()]
    if not tiers or (unknown := [tier for tier in tiers if tier not in TIERS + MORE_TIERS]):
        raise Misuse(
            f"must be some of {', '.join(TIERS + MORE_TIERS)}, not {', '.join(unknown) if tiers else 'nothing'}",
            field="--tier",
        )
    plain = [tier0.workload(), ability.reset(), ability.fork()]
    if set(tiers) <= {workload.tier for workload in plain}:
        return [workload for workload in plain if workload.tier in tiers]
    with console.status("preparing the repository and its test dependencies (fetched once, then cached)"):
        project = _project(args)
        every = (
            *plain,
            live.workload(project, args.think),
            tier1.workload(project),
            tier2.workload(project),
            *_staged(project, tiers),
        )
        return [workload for workload in every if workload.tier in tiers]


def _replay(args: argparse.Namespace) -> Workload:
    if args.trace_cwd is not None and not args.trace_cwd.startswith("/"):
        raise Misuse(f"must be absolute, not {args.trace_cwd!r}", field="--trace-cwd")
    if args.trace_repo is not None and not args.trace_repo.is_dir():
        raise Misuse(f"{args.trace_repo} is no directory", field="--trace-repo")
    if args.trace_repo is not None and args.trace_unisolated:
        raise Misuse("uploads nothing where nothing isolates: leave out --trace-unisolated", field="--trace-repo")
    given = Surroundings(
        image=args.trace_image,
        cwd=args.trace_cwd,
        shell=trace.shell_words(args.trace_shell) if args.trace_shell is not None else (),
        repository=args.trace_repo,
    )
    return trace.workload(args.trace, given=given, anywhere=args.trace_anywhere)


def _staged(project: material.Project, tiers: Sequence[str]) -> list[Workload]:
    return [staged.workload(project, stage) for stage in staged.STAGES if f"T2@{stage}" in tiers]


def _project(args: argparse.Namespace) -> material.Project:
    if args.repo is None:
        return material.attrs_project()
    if not (args.commit and args.patch and args.test):
        raise Misuse("needs --commit, --patch and --test beside it", field="--repo")
    return material.upstream_project(args.repo, args.commit, patch=args.patch.read_bytes(), test=args.test)


async def _connect(name: str, stack: AsyncExitStack) -> Subject:
    substrate = await stack.enter_async_context(registry.connect(name))
    plain, _, options = name.partition("?")
    only_dispatch = not options or (options.startswith("dispatch=") and "&" not in options)
    return Subject(label=name, name=plain if only_dispatch else name, substrate=substrate, hollow=plain == "noop")


def _available(console: Console, *, quick: bool) -> list[str]:
    """List the substrates that are measured unasked: quick and free here, each driver in each dispatch mode."""
    names: list[str] = []
    for name, load in registry.drivers():
        try:
            driver = load()
            why = _left_out(name, driver, quick=quick)
        except Unavailable as error:
            driver, why = None, str(error)
        if why is not None:
            console.print(f"not measured: {name}: {printable(why)}", soft_wrap=True)
            continue
        modes = tuple(dict.fromkeys(offered.dispatch for offered in _declared(driver)))
        names += [f"{name}?dispatch={mode}" for mode in modes] if len(modes) > 1 else [name]
    return names


def _declared(driver: Driver | None) -> Sequence[Capabilities]:
    return driver.declared() if driver is not None else ()


def _left_out(name: str, driver: Driver, *, quick: bool) -> str | None:
    """Return the reason why a substrate is not measured unless it is named; None: it is measured."""
    found = driver.probe()
    if not found.available:
        return found.reason + (f"; {found.enable}" if found.enable else "")
    if driver.costs:
        return f"each sandbox is paid for; name it to measure it: -s {name}"
    if found.emulated:
        return f"emulated here, it takes minutes for what takes others seconds; name it to measure it: -s {name}"
    if quick and any(offered.isolation in ("kernel", "vm") for offered in _declared(driver)):
        return f"a kernel of its own is slow to start, and left out of --quick; name it to measure it: -s {name}"
    return None


def _announce(prepared: Prepared, console: Console) -> None:
    for problem in prepared.problems:
        console.print(f"warning: {problem}")
    missing: dict[tuple[str, str], list[str]] = {}
    for (label, tier), offer in prepared.offers.items():
        if not offer.offered:
            missing.setdefault((label, offer.reason), []).append(tier)
    for (label, reason), tiers in missing.items():
        console.print(f"not offered: {label} {', '.join(tiers)}: {reason}", soft_wrap=True)
    if not prepared.todo:
        console.print("nothing left to measure: the directory holds every trial of this plan")
    elif prepared.done:
        console.print(f"resuming: {prepared.done} trials are already there")


def _numbers(option: str, text: str, *, low: int) -> tuple[int, ...]:
    try:
        values = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise Misuse(f"must be numbers separated by commas, not {text!r}", field=option) from error
    if any(not low <= value <= 100_000 for value in values):
        raise Misuse(f"must be between {low} and 100000, not {text}", field=option)
    return values


def _trials_for(given: str) -> tuple[str, int]:
    label, _, number = given.rpartition("=")
    if not label or not number.isdecimal() or int(number) < 1:
        raise Misuse(f"must be a substrate of this run, =, and a number of trials, not {given!r}", field="--trials-for")
    return label, int(number)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _pause(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value
