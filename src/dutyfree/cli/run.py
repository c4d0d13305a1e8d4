"""`dutyfree run`: one command in a fresh sandbox, with our own stdin, stdout and stderr, byte for byte.

Its exit code is ours. Otherwise: 124 the deadline passed · 137 it ran out of the sandbox's memory, or was killed ·
128+n signal n ended it · 2, 3 and 4 as in `errors`, when the sandbox and not the command failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import stat
import sys
from contextlib import suppress

from dutyfree.core.contract import Command, Process, Sandbox
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Limits, Spec
from dutyfree.core.timeline import now_ns
from dutyfree.substrates.registry import connect

HELP = "one command in a fresh sandbox"
TIMEOUT = 124
KILLED = 137
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("-s", "--substrate", default="native", help="where to run it (default: native)")
    parser.add_argument("--image", default="host", help="a name the substrate knows, or a rootfs (default: host)")
    parser.add_argument("--timeout", type=float, metavar="S", help="kill it after this many seconds")
    parser.add_argument("--memory", metavar="SIZE", help="limit, such as 512M or 2G")
    parser.add_argument("--disk", metavar="SIZE", help="limit on what it may write")
    parser.add_argument("--cpus", type=float, metavar="N", help="limit, such as 0.5")
    parser.add_argument("--pids", type=int, metavar="N", help="limit on processes and threads")
    parser.add_argument("--network", choices=("none", "host"), help="default: none where the substrate can")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="a variable (repeatable)")
    parser.add_argument("--cwd", metavar="DIR", help="where it starts")
    parser.add_argument("--user", metavar="WHO", help="whom it runs as, inside")
    parser.add_argument("--time", action="store_true", help="say on stderr where the time went")
    parser.add_argument(
        "words", nargs="+", metavar="CMD", help="after --; one word is run by bash -c, several directly"
    )


def run(args: argparse.Namespace) -> int:
    """Run it."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    start_ns = now_ns()
    words: list[str] = args.words
    command: Command = words[0] if len(words) == 1 else words
    async with connect(args.substrate) as substrate:
        connected_ns = now_ns()
        async with substrate.create(_spec(args)) as box:
            created_ns = now_ns()
            outcome = await _relay(box, command, args)
        if args.time:
            _tell(start_ns, connected_ns, created_ns, outcome)
    return _exit_code(outcome)


def _spec(args: argparse.Namespace) -> Spec:
    limits = Limits(
        cpus=args.cpus,
        memory_bytes=_size("--memory", args.memory),
        pids=args.pids,
        disk_bytes=_size("--disk", args.disk),
    )
    return Spec(image=args.image, limits=limits, network=args.network, env=_env(args.env), cwd=args.cwd, user=args.user)


async def _relay(box: Sandbox, command: Command, args: argparse.Namespace) -> Outcome:
    """As it comes where the substrate streams, else all input before and all output after."""
    if not box.capabilities.stream:
        given = b"" if _no_input() else await asyncio.to_thread(sys.stdin.buffer.read)
        outcome = await box.run(command, timeout_s=args.timeout, stdin=given)
        _write_all(1, outcome.stdout)
        _write_all(2, outcome.stderr)
        return outcome
    process = await box.start(command, timeout_s=args.timeout, stdin=b"" if _no_input() else None)
    feeding = None if _no_input() else asyncio.create_task(_feed(process))
    try:
        async for name, data in process:
            _write_all(1 if name == "stdout" else 2, data)
        return await process.wait()
    finally:
        if feeding is not None:
            feeding.cancel()
            with suppress(asyncio.CancelledError):
                await feeding


async def _feed(process: Process) -> None:
    """Our stdin to the command's. A terminal or pipe is waited for by the loop, so that the command's end ends us."""
    if stat.S_ISREG(os.fstat(0).st_mode):
        while data := os.read(0, 1 << 20):
            await process.write(data)
    else:
        while data := await _readable():
            await process.write(data)
    await process.close_stdin()


async def _readable() -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(0, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(0)
    return os.read(0, 1 << 20)


def _no_input() -> bool:
    """Nothing there to be read: closed, or /dev/null, which the loop cannot watch."""
    try:
        return os.path.samestat(os.fstat(0), os.stat(os.devnull))
    except OSError:
        return True


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


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
