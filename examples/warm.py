"""A start state that is built once, and sandboxes that wait at it.

.venv/bin/python examples/warm.py [substrate]
"""

import asyncio
import sys
import time

import dutyfree
from dutyfree.warm import open_pool

START = dutyfree.Spec(
    cwd="/srv",
    stages=(
        dutyfree.Files(files={"/srv/sums.py": b"def total(values):\n    return 0\n"}, name="sources"),
        dutyfree.Commands(
            commands=["python3 -m compileall -q . && git init -q . && git add ."], cwd="/srv", name="index"
        ),
    ),
)


async def main(name: str) -> None:
    async with open_pool(name, targets=[(START, 8)]) as pool:
        await pool.settled()
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(rollout(pool)) for _ in range(8)]
        elapsed_ms = 1e3 * (time.perf_counter() - begun)
        seen = pool.metrics()
    print(f"8 rollouts in {elapsed_ms:.0f} ms, {sum(task.result() for task in tasks)} saw sums.py staged")
    print(
        f"{seen.hits} of {seen.claims} sandboxes were waiting, {1e3 * seen.distance_s / seen.claims:.2f} ms paid each"
    )


async def rollout(pool: dutyfree.Substrate) -> bool:
    async with pool.create(START) as box:
        out = await box.run("git status --porcelain")
        return b"A  sums.py" in out.stdout


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "native"))
