"""`dutyfree run`: one command in a fresh sandbox, with our own stdin, stdout and stderr, byte for byte.

Its exit code is ours. Otherwise: 124 the deadline passed · 125 the sandbox and not the command
failed, or the command line is wrong · 126 not executable · 127 not found · 137 it ran out of the
sandbox's memory, or was killed · 128+n signal n ended it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

from dutyfree.cli import luggage
from dutyfree.cli.parser import Appending, Parser
from dutyfree.cli.relay import SHELL, Ended, all_input, attend, relay
from dutyfree.core.contract import Command, Sandbox, Substrate
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import Pending
from dutyfree.core.settings import default_substrate
from dutyfree.core.spec import Limits, Spec
from dutyfree.core.timeline import now_ns
from dutyfree.substrates.registry import connect

HELP = "one command in a fresh sandbox"
TIMEOUT = 124
KILLED = 137
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(parser: Parser) -> None:
    """Its options."""
    add = parser.add_argument
    add("-s", "--substrate", default=default_substrate(), help="where to run it (default: %(default)s)")
    add("--image", help="a name the substrate knows, or a rootfs (default: host)")
    add("--stages", type=Path, metavar="FILE", help="start from the state that this file declares, built once and kept")
    add("--upload", action=Appending, default=[], metavar="DIR[:PATH]",
        help=f"copy a directory or file in before; the command starts there (PATH: {luggage.WORK}; repeatable)")  # fmt: skip
    add("--download", action=Appending, default=[], metavar="PATH[:LOCAL]",
        help="copy a directory or file out after it, to a place that is free (repeatable)")  # fmt: skip
    add("-t", "--tty", action="store_true", help="give it this terminal; without CMD: an interactive shell")
    add("-i", "--interactive", action="store_true", help="as it always is: input goes to the command (so -it works)")
    add("--timeout", type=float, metavar="S", help="kill it after this many seconds")
    add("--memory", metavar="SIZE", help="limit, such as 512M or 2G")
    add("--disk", metavar="SIZE", help="limit on what it may write")
    add("--cpus", type=float, metavar="N", help="limit, such as 0.5")
    add("--pids", type=int, metavar="N", help="limit on processes and threads")
    add("--network", choices=("none", "host"), help="default: none where the substrate can")
    add("--env", action=Appending, default=[], metavar="K=V", help="a variable (repeatable)")
    add("--cwd", metavar="DIR", help="where it starts")
    add("--user", metavar="WHO", help="whom it runs as, inside")
    add("--time", action="store_true", help="say on stderr where the time went")
    add("--json", action="store_true", help="write how it ended, its output and its costs as one JSON object")
    add("words", nargs="*", metavar="CMD", help="after --; one word is run by bash -c, several directly")


def run(args: argparse.Namespace) -> int:
    """Run it."""
    try:
        return asyncio.run(_run(args))
    except Ended as ended:
        return 128 + int(ended.args[0])


async def _run(args: argparse.Namespace) -> int:
    command = _command(args)
    bags = luggage.parse(args.upload, args.download)
    start_ns = now_ns()
    async with _substrate(args) as substrate:
        connected_ns = now_ns()
        async with substrate.create(_spec(args, cwd=None if bags.uploads else args.cwd)) as box:
            created_ns = now_ns()
            await bags.pack(box)
            outcome = await _act(box, command, args, args.cwd or bags.cwd)
            await bags.unpack(box)
        if args.time:
            _tell(start_ns, connected_ns, created_ns, outcome)
    return _exit_code(outcome)


def _command(args: argparse.Namespace) -> Command:
    words: list[str] = args.words
    if args.tty and args.json:
        raise Misuse("a terminal's output cannot be JSON", field="--tty")
    if not words and not args.tty:
        raise Misuse("say what to run, after --; or -it for a shell", field="CMD")
    return (words[0] if len(words) == 1 else words) if words else SHELL


async def _act(box: Sandbox, command: Command, args: argparse.Namespace, cwd: str | None) -> Outcome:
    if args.tty:
        return await attend(box, command, timeout_s=args.timeout, cwd=cwd)
    if not args.json:
        return await relay(box, command, timeout_s=args.timeout, cwd=cwd)
    outcome = await box.run(command, timeout_s=args.timeout, cwd=cwd, stdin=await all_input())
    streams = {name: getattr(outcome, name).decode(errors="replace") for name in ("stdout", "stderr")}
    print(json.dumps({**asdict(outcome), **streams}))
    return outcome


def _substrate(args: argparse.Namespace) -> Pending[Substrate]:
    if args.stages is None:
        return connect(args.substrate)
    return connect(f"warm:{args.substrate.removeprefix('warm:')}", demand=False)


def _spec(args: argparse.Namespace, *, cwd: str | None) -> Spec:
    """Build the spec from the options, which win over the declaration of stages."""
    limits = Limits(
        cpus=args.cpus,
        memory_bytes=_size("--memory", args.memory),
        pids=args.pids,
        disk_bytes=_size("--disk", args.disk),
    )
    base = Spec() if args.stages is None else _declared(args.stages)
    given = {"image": args.image, "network": args.network, "cwd": cwd, "user": args.user}
    return replace(
        base,
        limits=Limits(**{**base.limits.given(), **limits.given()}),  # type: ignore[arg-type]
        env={**base.env, **_env(args.env)},
        **{name: value for name, value in given.items() if value is not None},
    )


def _declared(path: Path) -> Spec:
    from dutyfree.warm import load  # noqa: PLC0415 - only where stages are used

    return load(path)


def _exit_code(outcome: Outcome) -> int:
    if outcome.ending == "timeout":
        print("dutyfree: the deadline passed and the command was killed", file=sys.stderr)
        return TIMEOUT
    if outcome.ending == "oom":
        print("dutyfree: the command ran out of memory; a higher limit: --memory", file=sys.stderr)
        return KILLED
    if outcome.oom_kills:
        print(
            f"dutyfree: the memory limit killed {outcome.oom_kills} process(es) of the command; a higher limit: --memory",
            file=sys.stderr,
        )
    if outcome.exit_code is not None:
        return outcome.exit_code
    return 128 + (outcome.signal or 9)


def _tell(start_ns: int, connected_ns: int, created_ns: int, outcome: Outcome) -> None:
    rows = {
        "connect": connected_ns - start_ns,
        "create": created_ns - connected_ns,
        "run": outcome.run_ns,
        "dispatch": outcome.dispatch_ns,
        "cpu": outcome.cpu_ns,
    }
    text = " · ".join(f"{name} {value / 1e6:.2f} ms" for name, value in rows.items())
    print(f"dutyfree: {text}", file=sys.stderr)


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise Misuse(f"{text!r} is no size; write it like 512M or 2G", field=option)
    return int(match[1]) * _UNITS[match[2].upper()]


def _env(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise Misuse(f"{pair!r} is not written NAME=value", field="--env")
    return dict(pair.split("=", 1) for pair in pairs)
