"""`make versus OLD=REVISION`: the native substrate of this tree against that of an older revision, in one run.

Both are built from their sources and live in processes of their own; every round takes each row of each once, in random
order. A ratio is new over old, of medians, with its 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.bounds import quantile
from benchmarks.interleave import Contender, Records, SampleFailed, interleave, now_ns

ROOT = Path(__file__).parents[1]
BURST, FORKS, PAUSE_S = 32, 8, 0.025
_WARM_UP = 3
_LARGE = bytes(range(256)) * (1 << 14)


class Rows:
    """What is timed, each by a method that answers nanoseconds; runs in the process of one tree."""

    async def open(self) -> None:
        """Connect, with a sandbox that lives through the run and one to reset."""
        import dutyfree  # noqa: PLC0415 - the tree's own

        self.substrate = await dutyfree.connect("native")
        self.box, self.used = await self.substrate.create(), await self.substrate.create()
        self.shell = await self.box.shell()

    async def _started(self) -> Any:
        box = await self.substrate.create()
        assert (await box.run(["true"])).ok
        return box

    async def create(self) -> int:
        """Create, to the first result."""
        begun_ns = now_ns()
        box = await self._started()
        took_ns = now_ns() - begun_ns
        await box.destroy()
        return took_ns

    async def paced(self) -> int:
        """The same after a pause, in which the stock is filled again."""
        await asyncio.sleep(PAUSE_S)
        return await self.create()

    async def burst(self) -> int:
        """Ask for many at once, to the last one's first result."""
        begun_ns = now_ns()
        boxes = await asyncio.gather(*(self._started() for _ in range(BURST)))
        took_ns = now_ns() - begun_ns
        await asyncio.gather(*(box.destroy() for box in boxes))
        return took_ns

    async def fork(self) -> int:
        """Fork, to the last fork made."""
        begun_ns = now_ns()
        boxes = await asyncio.gather(*await self.box.fork(FORKS))
        took_ns = now_ns() - begun_ns
        await asyncio.gather(*(box.destroy() for box in boxes))
        return took_ns

    async def reset(self) -> int:
        """Reset after a few files were written."""
        assert (await self.used.run("for i in 1 2 3 4 5 6 7 8; do echo $i >/srv/$i; done")).ok
        begun_ns = now_ns()
        await self.used.reset()
        return now_ns() - begun_ns

    async def _timed(self, call: Awaitable[Any]) -> int:
        begun_ns = now_ns()
        outcome = await call
        took_ns = now_ns() - begun_ns
        assert outcome.ok, outcome
        return took_ns

    async def run_list(self) -> int:
        """Run a list."""
        return await self._timed(self.box.run(["true"]))

    async def run_string(self) -> int:
        """Run a string."""
        return await self._timed(self.box.run("true"))

    async def shell_run(self) -> int:
        """Run in a shell."""
        return await self._timed(self.shell.run("true"))

    async def file(self, data: bytes = _LARGE[:1024]) -> int:
        """Write and read 1 KiB."""
        begun_ns = now_ns()
        await self.box.write("/tmp/file", data)
        assert await self.box.read("/tmp/file") == data
        return now_ns() - begun_ns

    async def file_large(self) -> int:
        """Write and read 4 MiB."""
        return await self.file(_LARGE)


ROWS = {
    "create": 0.0, "paced": 0.0, "burst": 0.2, "fork": 0.1, "reset": 0.0, "run_list": 0.0, "run_string": 0.0,
    "shell_run": 0.0, "file": 0.0, "file_large": 0.0,
}  # fmt: skip
"""Each row, and the pause after it, so that what it leaves to others is not charged to the next one."""


async def serve() -> None:
    """Answer the names of rows with nanoseconds, until there are no more."""
    rows = Rows()
    await rows.open()
    print("ready", flush=True)
    while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
        print(await getattr(rows, name)(), flush=True)
    await rows.substrate.close()


def started(stack: ExitStack, source: Path) -> subprocess.Popen[str]:
    """A process with the substrate of a tree."""
    home = stack.enter_context(tempfile.TemporaryDirectory())
    command = [sys.executable, "-m", "benchmarks.versus", "--serve"]
    env = {**os.environ, "PYTHONPATH": str(source / "src"), "DUTYFREE_HOME": home}
    side = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(side.wait)
    stack.callback(side.stdin.close)
    if said(side) != "ready":
        raise SampleFailed(f"{source} does not start")
    return side


def said(side: subprocess.Popen[str]) -> str:
    return side.stdout.readline().strip()


def asking(side: subprocess.Popen[str], row: str) -> Callable[[], int]:
    def measure() -> int:
        print(row, file=side.stdin, flush=True)
        answer = said(side)
        if not answer:
            raise SampleFailed("it has ended")
        return int(answer)

    return measure


def old_tree(stack: ExitStack, revision: str) -> Path:
    """The revision's sources with its programs built, in a directory of its own."""
    place = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "old"
    subprocess.run(["git", "-C", ROOT, "worktree", "add", "-q", "--detach", place, revision], check=True)
    stack.callback(subprocess.run, ["git", "-C", ROOT, "worktree", "remove", "--force", place], check=True)
    subprocess.run(["make", "-s", "-C", place, "native"], check=True)
    return place


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versus", description=__doc__)
    parser.add_argument("old", nargs="?", help="a revision of this repository")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the random order")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return 0
    with ExitStack() as stack:
        sides = {
            "old": started(stack, old_tree(stack, options.old)),
            "new": started(stack, ROOT),
        }
        contenders = [
            Contender(name=f"{row}/{name}", group=row, label=row, measure=asking(side, row), settle_s=pause_s)
            for row, pause_s in ROWS.items()
            for name, side in sides.items()
        ]
        records = stack.enter_context(closing(Records(ROOT / "out/versus/samples.jsonl")))
        seen = interleave(
            contenders, phase="versus", rounds=options.rounds, warm_up=_WARM_UP, seed=options.seed, records=records,
            progress=lambda line: print(line, file=sys.stderr),
        )  # fmt: skip
    from dutyfree.meter.stats import ratio  # noqa: PLC0415 - numpy and scipy, not while it measures

    print("| row | old p50, ms | new p50, ms | new / old | p95 | failed |\n|---|---|---|---|---|---|")
    for row in ROWS:
        old, new = seen[f"{row}/old"], seen[f"{row}/new"]
        value, interval = ratio(new.times_ns, old.times_ns)
        low, high = interval or (float("nan"), float("nan"))
        tail = quantile(new.times_ns, 0.95) / quantile(old.times_ns, 0.95)
        medians = " | ".join(f"{quantile(side.times_ns, 0.5) / 1e6:.3f}" for side in (old, new))
        failed = len(old.failures) + len(new.failures)
        print(f"| {row} | {medians} | {value:.3f} [{low:.3f}, {high:.3f}] | {tail:.2f} | {failed} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
