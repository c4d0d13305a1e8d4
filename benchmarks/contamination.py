"""`make contamination`: markers of probes 67 to 81 planted in a native sandbox, a reset, a search; so many times.

    .venv/bin/python -m benchmarks.contamination [--resets 10000] [--parallel 4]

`planting.py` leaves files, edits, owners and modes, daemons, sockets, shared memory, queues, limits and more. After each reset the sandbox must look
exactly as a fresh one did, and no process of the machine may carry the mark. Every hundredth time its whole tree is searched too, and a
new sandbox looked at. Prints how many resets left something; exit code 1 if any did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dutyfree

THOROUGH = 100
"""Every how many resets the whole tree is searched."""
_PLANTING = Path(__file__).with_name("planting.py").read_text()
_PYTHON = ("python3", "-I", "-S", "-c", _PLANTING)
_SEARCH = 'find / -xdev -name "*$0*" 2>/dev/null; grep -rls "$0" /etc /root /home /srv /opt /var/tmp; true'
_PATIENCE_S = 300.0

Say = Callable[[str], None]


async def _look(box: dutyfree.Sandbox) -> dict[str, Any]:
    outcome = await box.run([*_PYTHON, "look"], timeout_s=_PATIENCE_S)
    if not outcome.ok:
        raise AssertionError(f"cannot look: {outcome.text()} {outcome.stderr[-500:]!r}")
    return dict(json.loads(outcome.stdout))


async def _plant(box: dutyfree.Sandbox, mark: str) -> None:
    outcome = await box.run([*_PYTHON, "plant", mark], background=True, timeout_s=_PATIENCE_S)
    if outcome.ending != "signal" and not outcome.ok:  # its own timer may end it first
        raise AssertionError(f"cannot plant: {outcome.text()} {outcome.stderr[-500:]!r}")


def _marked(mark: str) -> list[str]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(f"process {name} of the machine")
        except OSError:
            continue
    return found


def _differences(fresh: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    for name, was in fresh.items():
        parts = (was, now[name]) if isinstance(was, dict) else ({"": was}, {"": now[name]})
        found += [
            f"{name} {key}: {parts[0].get(key)} became {part}"
            for key, part in parts[1].items()
            if parts[0].get(key) != part
        ]
    return found


async def _round(
    substrate: dutyfree.Substrate, box: dutyfree.Sandbox, fresh: dict[str, Any], *, whole: bool
) -> list[str]:
    mark = f"planted{secrets.token_hex(8)}"
    await _plant(box, mark)
    await box.reset()
    found = _marked(mark) + _differences(fresh, await _look(box))
    if whole:
        searched = await box.run(["sh", "-c", _SEARCH, mark], timeout_s=_PATIENCE_S)
        found += searched.text().splitlines()
        async with substrate.create() as later:
            found += [f"in a new one: {line}" for line in _differences(fresh, await _look(later))]
    return found


async def _contaminate(resets: int, parallel: int, say: Say) -> list[list[str]]:
    found: list[list[str]] = []
    start, done = time.monotonic(), 0
    numbers = iter(range(1, resets + 1))
    async with dutyfree.connect("native") as substrate:
        async with substrate.create() as box:
            fresh = await _look(box)
            await _plant(box, "planted")
            if not _differences(fresh, await _look(box)):
                raise AssertionError("nothing can be planted, so nothing could be found")

        async def worker() -> None:
            nonlocal done
            async with substrate.create() as box:
                for number in numbers:
                    left = await _round(substrate, box, fresh, whole=number % THOROUGH == 0)
                    done += 1
                    if left:
                        found.append(left)
                    if done % 500 == 0:
                        say(f"{done} resets, {done / (time.monotonic() - start):.1f}/s, {len(found)} contaminated")

        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(worker())
    return found


def contaminate(resets: int, parallel: int, say: Say) -> list[list[str]]:
    """What was found after each reset that left something."""
    found = asyncio.run(_contaminate(resets, parallel, say))
    say(f"{len(found)} contaminations in {resets} resets")
    return found


def main() -> None:
    """Exit code 1 and what was found, if anything was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resets", type=int, default=10_000)
    parser.add_argument("--parallel", type=int, default=4)
    args = parser.parse_args()
    found = contaminate(args.resets, args.parallel, lambda line: print(line, flush=True))
    for left in found[:20]:
        print("\n".join(left))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
