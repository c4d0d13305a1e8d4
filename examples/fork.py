"""A tree of attempts: prepare once, fork the state, try different things, keep the best, go on from there.

.venv/bin/python examples/fork.py
"""

import asyncio
from collections.abc import Awaitable

import dutyfree

PREPARE = "mkdir /work && cd /work && seq 1 1000 >numbers && echo ready"
ATTEMPTS = ("head -10 numbers >answer", "grep 7 numbers >answer", "tail -500 numbers >answer")


async def attempt(pending: Awaitable[dutyfree.Sandbox], script: str) -> tuple[int, dutyfree.Sandbox]:
    box = await pending
    await box.run(script, cwd="/work", timeout_s=20)
    return int((await box.run("wc -l <answer", cwd="/work")).text()), box


async def main() -> None:
    async with dutyfree.connect("native") as substrate, substrate.create() as root:
        print((await root.run(PREPARE)).text().strip())
        forks = await root.fork(len(ATTEMPTS))
        tried = await asyncio.gather(*(attempt(*pair) for pair in zip(forks, ATTEMPTS, strict=True)))
        print("rewards:", [reward for reward, _ in tried])
        _, best = max(tried, key=lambda one: one[0])
        for pending in await best.fork(1):  # the next step begins where the best one ended
            async with pending as step:
                print("from the best:", (await step.run("head -1 answer", cwd="/work")).text().strip())
        await root.reset()
        print("after a reset:", (await root.run("ls /work 2>&1")).text().strip())


if __name__ == "__main__":
    asyncio.run(main())
