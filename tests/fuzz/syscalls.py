"""`make fuzz-syscalls`: allowed system calls with random flags and arguments inside sandboxes, while the host is watched.

    .venv/bin/python tests/fuzz/syscalls.py [--seconds 600] [--seed N]

Two sandboxes at a time, one command as root inside and one as an ordinary user; each lives for some seconds and is followed
by one with the next seed. Watched: memory, open files, processes, asynchronous I/O, terminals, settings, mounts, the kernel's
log, what a sibling can do, and what is left at the end. Prints the seed and every finding; exit code 1 if there is any.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import dutyfree
from dutyfree.probe.canary import changed_settings, settings
from dutyfree.probe.kernel_memory import MOST_BYTES, Watch
from dutyfree.probe.table import FILES, TERMINAL, on_the_host
from dutyfree.testing.leaks import holdings, leaked

HERE = Path(__file__).parent
ROUND_S = 12.0
LIMITS = dutyfree.Limits(memory_bytes=128 << 20, pids=64, disk_bytes=32 << 20)
USERS = (None, "1000")
TROUBLE = re.compile(
    r"BUG:|WARNING:|Oops|general protection|soft lockup|hung task|refcount|use-after-free|rcu.*stall|UBSAN|KASAN"
)
COUNTERS = {
    "open files": ("/proc/sys/fs/file-nr", 20_000),
    "terminals": ("/proc/sys/kernel/pty/nr", 200),
    "asynchronous I/O": ("/proc/sys/fs/aio-nr", 4_096),
    "inotify and other inodes": ("/proc/sys/fs/inode-nr", 4_000_000),
}
"""Numbers of the whole machine, and by how much they may be higher when it is over: others use it too."""
PATIENCE_S = 20.0


@dataclass
class Findings:
    """What was seen, and what should not have been."""

    calls: int = 0
    rounds: int = 0
    lost: int = 0
    numbers: set[int] = field(default_factory=set)
    most: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class KernelLog:
    """New lines of the kernel's log that mean trouble."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self._fd = -1

    def trouble(self) -> list[str]:
        found = []
        while self._fd >= 0:
            try:
                found.append(os.read(self._fd, 8192).decode(errors="replace").split("\n")[0])
            except BrokenPipeError:
                continue  # lines were dropped: go on with those that are there
            except OSError:
                break
        return [line for line in found if TROUBLE.search(line) and "traps:" not in line]  # those are programs'

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


async def in_turn(substrate: dutyfree.Substrate, user: str | None, seed: int, until: float, found: Findings) -> None:
    """One sandbox after the other."""
    number = 0
    while (left := until - time.monotonic()) > 1:
        number += 1
        try:
            async with substrate.create(dutyfree.Spec(limits=LIMITS)) as box:
                await box.write("/calls.py", (HERE / "calls.py").read_bytes())
                words = ["python3", "-I", "/calls.py", str(seed + number * 7919), str(min(ROUND_S, left))]
                outcome = await box.run(words, user=user, timeout_s=ROUND_S + 30, output_limit_bytes=1 << 20)
        except dutyfree.SandboxLost:
            found.lost += 1
            continue
        read(outcome, found)


def read(outcome: dutyfree.Outcome, found: Findings) -> None:
    """What a command says that may have broken its own output: whatever is no number of ours is passed over."""
    found.rounds += 1
    for line in reversed(outcome.stdout.splitlines()):
        try:
            said = json.loads(line)
            found.calls += said["calls"]
            found.numbers |= set(said["succeeded"])
        except (ValueError, KeyError, TypeError):
            continue
        return


def counters() -> dict[str, int]:
    return {
        name: int(Path(path).read_text().split()[0]) for name, (path, _) in COUNTERS.items() if os.access(path, os.R_OK)
    }


async def watch(substrate: dutyfree.Substrate, found: Findings) -> None:
    """Look at the host every second; a sibling has to do what it is asked, and the host can open files."""
    before = counters()
    with contextlib.closing(KernelLog()) as log:
        async with substrate.create() as sibling:
            while True:
                start = time.monotonic()
                if (await sibling.run(["echo", "here"], timeout_s=60)).stdout != b"here\n":
                    found.wrong.append("a sibling does not do what it is asked")
                found.most["a sibling's slowest answer, ms"] = max(
                    found.most.get("a sibling's slowest answer, ms", 0), int((time.monotonic() - start) * 1e3)
                )
                for name, now in counters().items():
                    grown = now - before[name]
                    found.most[name] = max(found.most.get(name, 0), grown)
                found.wrong += log.trouble()
                if why := on_the_host(FILES + "\n" + TERMINAL)():
                    found.wrong.append(why)
                await asyncio.sleep(1)


def fuzz(seconds: float, seed: int) -> Findings:
    """All of it; what was found."""
    found, before, own, numbers = Findings(), settings(), holdings(orphans=False), counters()
    asyncio.run(play(seconds, seed, found))
    found.wrong += stayed(numbers)
    found.wrong += [f"a setting of the machine was changed: {name}" for name in changed_settings(before)]
    found.wrong += [f"left behind: {kind} {what}" for kind, what in leaked(own, PATIENCE_S, orphans=False)]
    if found.calls == 0:
        found.wrong.append("no call was made")
    return found


def stayed(before: dict[str, int]) -> list[str]:
    """Tables of the machine that do not come back to where they were."""
    end = time.monotonic() + PATIENCE_S
    while True:
        grown = {name: now - before[name] for name, now in counters().items()}
        more = [f"{name} of the machine: {count} more" for name, count in grown.items() if count > COUNTERS[name][1]]
        if not more or time.monotonic() > end:
            return more
        time.sleep(0.5)


async def play(seconds: float, seed: int, found: Findings) -> None:
    async with dutyfree.connect("native") as substrate:
        guard = asyncio.ensure_future(watch(substrate, found))
        async with Watch() as memory:
            until = time.monotonic() + seconds
            await asyncio.gather(
                *(in_turn(substrate, user, seed + index * 104_729, until, found) for index, user in enumerate(USERS))
            )
        guard.cancel()
        found.wrong += [
            f"the watch failed: {error}"
            for error in await asyncio.gather(guard, return_exceptions=True)
            if isinstance(error, Exception)
        ]
    fell = await memory.fell(len(USERS) * (LIMITS.memory_bytes or 0))
    found.most["memory of the machine, MiB"] = fell >> 20
    if fell > len(USERS) * MOST_BYTES:
        found.wrong.append(f"the machine had {fell >> 20} MiB less")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="system calls with random arguments inside sandboxes, the host being watched"
    )
    parser.add_argument("--seconds", type=float, default=600, help="for how long (600)")
    parser.add_argument("--seed", type=int, default=None, help="seed for the calls; a new one by default")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(1 << 30)
    print(f"seed {seed}", flush=True)
    found = fuzz(options.seconds, seed)
    print(
        f"{found.calls} calls in {found.rounds} sandboxes, {found.lost} more were lost; {len(found.numbers)} different ones succeeded"
    )
    print("\n".join(f"most: {name} {most}" for name, most in found.most.items()))
    print("\n".join(dict.fromkeys(found.wrong)) or "nothing lost, nothing left")
    return int(bool(found.wrong))


if __name__ == "__main__":
    sys.exit(main())
