"""Cold start and dispatch of the container substrates, in both modes, beside native: one run, interleaved.

    python -m benchmarks.containers [--rounds 30] [--actions 10] [NAME …]

Each round makes one sandbox of each subject, in turn: from the request to the first result of `["true"]`, then further
`["true"]`s, then its end. A subject that is not available is named and left out.
"""

import argparse
import asyncio
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from statistics import median, quantiles

from dutyfree.core.errors import DutyfreeError
from dutyfree.core.spec import Spec
from dutyfree.substrates.registry import connect

SUBJECTS = (
    "native", "runc", "runc?dispatch=api", "docker", "docker?dispatch=api", "docker?profile=hardened",
    "podman", "podman?dispatch=api", "gvisor", "gvisor?dispatch=api",
    "kubernetes", "kubernetes?ready=wait", "kubernetes?dispatch=api", "kubernetes?dispatch=api&ready=wait",
    "kubernetes-claim", "kubernetes-claim?warm=2",
)  # fmt: skip
SPEC = Spec(image="bench")


async def sample(substrate, actions, seen):
    start = time.perf_counter()
    box = await substrate.create(SPEC)
    try:
        await box.run(["true"])
        seen["first"].append(time.perf_counter() - start)
        for _ in range(actions):
            start = time.perf_counter()
            await box.run(["true"])
            seen["action"].append(time.perf_counter() - start)
        start = time.perf_counter()
    finally:
        await box.destroy()
    seen["destroy"].append(time.perf_counter() - start)


async def main(names, rounds, actions):
    seen = defaultdict(lambda: defaultdict(list))
    async with AsyncExitStack() as stack:
        subjects = {}
        for name in names:
            try:
                subjects[name] = await stack.enter_async_context(connect(name))
                await sample(subjects[name], 1, defaultdict(list))  # images are brought in, caches are warm
            except DutyfreeError as error:
                print(f"{name}: left out: {error}")
                subjects.pop(name, None)
        for _ in range(rounds):
            for name, substrate in subjects.items():
                await sample(substrate, actions, seen[name])
    table(seen)


def table(seen):
    base = seen.get("native")
    print("\n| substrate | create → first result p50 | p95 | x native | action p50 | p95 | x native | destroy p50 |")
    print("|---|---|---|---|---|---|---|---|")
    for name, by in seen.items():
        cells = []
        for what in ("first", "action"):
            ratio = f"{median(by[what]) / median(base[what]):.1f}" if base else "-"
            cells += [ms(median(by[what])), ms(quantiles(by[what], n=20)[-1]), ratio]
        print(f"| `{name}` | {' | '.join(cells)} | {ms(median(by['destroy']))} |")


def ms(seconds):
    return f"{seconds * 1e3:.1f} ms"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--actions", type=int, default=10)
    parser.add_argument("names", nargs="*", default=SUBJECTS)
    args = parser.parse_args()
    asyncio.run(main(args.names, args.rounds, args.actions))
