"""What the seccomp filter costs: the same system calls in a native sandbox and on the bare host, as ratios in one run.

    .venv/bin/python -m benchmarks.filter [--rounds 15]

`getppid` is allowed without looking (the kernel's bitmap), `personality` has its argument looked at (the whole tree), and
`spin` calls nothing at all: it would show a mitigation that the filter switches on for every instruction (SPEC_ALLOW).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics

import dutyfree

_CODE = """
import ctypes, json, time
libc = ctypes.CDLL(None)
def timed(work, count):
    start = time.perf_counter_ns()
    work(count)
    return (time.perf_counter_ns() - start) / count
def getppid(count):
    for _ in range(count): libc.getppid()
def personality(count):
    for _ in range(count): libc.personality(-1)
def spin(count):
    cells = [0] * 64
    for i in range(count): cells[i & 63] += cells[(i * 7) & 63] + 1
print(json.dumps({work.__name__: timed(work, 200_000) for work in (getppid, personality, spin)}))
"""


async def _sample(box: dutyfree.Sandbox) -> dict[str, float]:
    outcome = await box.run(["python3", "-I", "-c", _CODE], timeout_s=60)
    return dict(json.loads(outcome.stdout))


async def _main(rounds: int) -> None:
    async with (
        dutyfree.connect("native") as native,
        dutyfree.connect("host") as host,
        native.create() as inside,
        host.create(dutyfree.Spec(network="host")) as outside,
    ):
        samples = [(await _sample(inside), await _sample(outside)) for _ in range(rounds)]
    for name in samples[0][0]:
        pairs = sorted(mine[name] / theirs[name] for mine, theirs in samples)
        median = statistics.median(mine[name] for mine, _ in samples)
        print(
            f"{name:12} {median:7.1f} ns inside, {statistics.median(pairs):.3f} x the host [{pairs[1]:.3f}, {pairs[-2]:.3f}]"
        )


def main() -> None:
    """Print one line per call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved samples of each side")
    asyncio.run(_main(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
