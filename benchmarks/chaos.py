"""`make chaos`: load and faults, mixed by a seed, for as many minutes as asked; then everything must be as before.

    .venv/bin/python -m benchmarks.chaos [--minutes 2] [--seed N]        load and faults on one substrate after the other
    .venv/bin/python -m benchmarks.chaos --owners 1000 [--seed N]        so many owners of sandboxes, each killed (-9)

The first line names the seed; the same seed plays the same faults in the same order. Held after each round: one ending for
every action, or an error that says the machinery failed; exact output; untouched image; nothing left; the next one works.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import dutyfree
from dutyfree.testing.leaks import TOKEN_VARIABLE, holdings, leaked

ENDINGS = {"exit", "signal", "timeout", "oom", "output-limit", "cancelled"}
_PATIENCE_S = 20.0
_OWNER = """
import asyncio, dutyfree, sys
async def churn(substrate):
    while True:
        async with substrate.create() as box:
            print("step", flush=True)
            await box.run(["true"])
            print("step", flush=True)
async def main():
    async with dutyfree.connect("native") as substrate, asyncio.TaskGroup() as group:
        box = await substrate.create()
        group.create_task(box.run("sleep 1000 & setsid sleep 1000 & exec sleep 1000"))
        for _ in range(3):
            group.create_task(churn(substrate))
asyncio.run(main())
"""


class Round:
    """One substrate under load with faults; counts what came of it."""

    def __init__(self, substrate: dutyfree.Substrate, dice: random.Random) -> None:
        self._substrate = substrate
        self._dice = dice
        self.ended: Counter[str] = Counter()

    async def one(self) -> None:
        """A sandbox with one of the things that happen to sandboxes."""
        fault = self._dice.choice(
            [self._plain, self._oom, self._late, self._flood, self._cancel, self._die, self._double]
        )
        try:
            async with self._substrate.create(dutyfree.Spec(limits=dutyfree.Limits(memory_bytes=64 << 20))) as box:
                await fault(box)
                self.ended[fault.__name__.strip("_")] += 1
        except dutyfree.DutyfreeError as error:
            self.ended[type(error).__name__] += 1

    async def _plain(self, box: dutyfree.Sandbox) -> None:
        word = secrets.token_hex(32)
        outcome = await box.run(["echo", word], timeout_s=_PATIENCE_S)
        if outcome.ending != "exit" or outcome.stdout != word.encode() + b"\n":
            raise AssertionError(f"echo ended as {outcome}")

    async def _oom(self, box: dutyfree.Sandbox) -> None:
        outcome = await box.run(["python3", "-c", "x = bytearray(1 << 28)"], timeout_s=_PATIENCE_S)
        if outcome.ok or outcome.ending not in ENDINGS:
            raise AssertionError(f"256 MiB of 64 ended as {outcome}")

    async def _late(self, box: dutyfree.Sandbox) -> None:
        outcome = await box.run("setsid sleep 100 & sleep 100", timeout_s=self._dice.uniform(0.01, 0.2))
        if outcome.ending != "timeout":
            raise AssertionError(f"a deadline ended as {outcome}")

    async def _flood(self, box: dutyfree.Sandbox) -> None:
        outcome = await box.run(["head", "-c", "8388608", "/dev/zero"], output_limit_bytes=4096, timeout_s=_PATIENCE_S)
        if len(outcome.stdout) > 4096 or (outcome.ok and len(outcome.stdout) + outcome.omitted_bytes != 8388608):
            raise AssertionError("output is not what it should be")

    async def _cancel(self, box: dutyfree.Sandbox) -> None:
        work: list[Awaitable[object]] = [
            box.run("sleep 100", timeout_s=_PATIENCE_S), box.write("/tmp/f", b"x" * (1 << 22)), box.shell(), box.read("/bin/bash"),
        ]  # fmt: skip
        tasks = [asyncio.ensure_future(one) for one in work]
        await asyncio.wait(tasks, timeout=self._dice.uniform(0, 0.05))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _die(self, box: dutyfree.Sandbox) -> None:
        running = asyncio.ensure_future(box.run("sleep 100", timeout_s=_PATIENCE_S))
        await asyncio.sleep(self._dice.uniform(0, 0.02))
        await box.destroy()
        with suppress(dutyfree.SandboxLost):
            await running

    async def _double(self, box: dutyfree.Sandbox) -> None:
        await asyncio.gather(box.destroy(), box.destroy(), box.destroy())


async def _round(dice: random.Random, ended: Counter[str]) -> None:
    async with dutyfree.connect("native") as substrate:
        game = Round(substrate, dice)
        kill = dice.random() < 0.5
        async with asyncio.TaskGroup() as group:
            for _ in range(dice.randint(10, 60)):
                group.create_task(game.one())
            if kill:
                group.create_task(_kill_spawner(dice.uniform(0.0, 0.3)))
        ended.update(game.ended)
        ended["spawner killed"] += kill


async def _kill_spawner(after_s: float) -> None:
    await asyncio.sleep(after_s)
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("dutyfree-spawne"):
                os.kill(int(pid), signal.SIGKILL)


async def _works() -> None:
    """One ordinary sandbox; its spawner also sweeps what a killed one left."""
    async with dutyfree.connect("native") as substrate, substrate.create() as box:
        if not (await box.run(["true"])).ok:
            raise AssertionError("the next substrate does not work")


def chaos(minutes: float, seed: int, say: Callable[[str], None]) -> list[str]:
    """Rounds until the time is over; what is wrong."""
    dice, ended, rounds = random.Random(seed), Counter[str](), 0
    before = holdings()
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end or rounds == 0:
        try:
            asyncio.run(_round(dice, ended))
        except ExceptionGroup as errors:
            return [f"round {rounds} of seed {seed}: {error}" for error in errors.exceptions]
        asyncio.run(_works())
        rounds += 1
        if left := leaked(before, _PATIENCE_S):
            return [f"after round {rounds} of seed {seed}: {kind} {what}" for kind, what in left]
    say(f"{rounds} rounds: {dict(sorted(ended.items()))}")
    return []


def kill_owners(count: int, seed: int, say: Callable[[str], None]) -> list[str]:
    """Owners of live sandboxes, each killed at a random step; what is left of them."""
    dice = random.Random(seed)
    before = holdings()
    for number in range(count):
        owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(dice.randint(0, 60)):
                if not (owner.stdout and owner.stdout.readline()):
                    return [f"owner {number} of seed {seed} ended by itself"]
        finally:
            owner.kill()
            owner.communicate()
        if left := leaked(before, _PATIENCE_S):
            return [f"after owner {number} of seed {seed}: {kind} {what}" for kind, what in left]
        if (number + 1) % 100 == 0:
            say(f"{number + 1} owners killed, nothing left")
    return []


def main() -> None:
    """Exit code 1 and what is wrong, if anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--owners", type=int, default=0, help="kill this many owners instead")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else secrets.randbelow(1 << 31)
    os.environ[TOKEN_VARIABLE] = str(os.getpid())
    print(f"seed {seed}", flush=True)

    def say(line: str) -> None:
        print(line, flush=True)

    faults = kill_owners(args.owners, seed, say) if args.owners else chaos(args.minutes, seed, say)
    print("\n".join(faults) if faults else "everything held")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
