"""A process that owns a pool and is meant to be killed: says each step on stdout, never ends by itself.

python warm_owner.py SUBSTRATE
"""

import asyncio
import sys

import dutyfree
from dutyfree.warm import open_pool


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def churn(pool, spec):
    while True:
        async with pool.create(spec) as box:
            say("created", box.origin)
            await box.run(["true"])
        say("destroyed")


async def build(pool, network):
    """Stages that nobody has built yet, one after the other."""
    stages = ()
    while True:
        stages = (*stages, dutyfree.Commands(commands=["head -c 300000 /dev/zero > $RANDOM; echo $RANDOM >> log"]))
        say("building", len(stages))
        await pool.build(dutyfree.Spec(stages=stages, network=network))
        say("built", len(stages))


async def main():
    async with open_pool(sys.argv[1]) as pool, asyncio.TaskGroup() as group:
        network = "none" if "none" in pool.capabilities.networks else "host"
        group.create_task(build(pool, network))
        for _ in range(3):
            group.create_task(churn(pool, dutyfree.Spec(network=network)))


asyncio.run(main())
