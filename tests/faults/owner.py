"""A process that owns sandboxes and is meant to be killed: says each step on stdout, never ends by itself.

python owner.py [fork] [disk]
"""

import asyncio
import os
import signal
import sys

import dutyfree


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def churn(substrate, spec):
    while True:
        async with substrate.create(spec) as box:
            say("created")
            await box.run(["true"])
            say("ran")
            await box.write("/tmp/file", b"x" * 100_000)
            say("wrote")
        say("destroyed")


async def main():
    spec = dutyfree.Spec(storage="disk" if "disk" in sys.argv else "memory")
    async with dutyfree.connect("native") as substrate, asyncio.TaskGroup() as group:
        for _ in range(3):
            box = await substrate.create(spec)
            group.create_task(box.run("sleep 1000 & setsid sleep 1000 & exec sleep 1000"))
        if "fork" in sys.argv:
            pid = os.fork()  # keeps every descriptor of ours, and does nothing
            if pid == 0:
                signal.pause()
            say("forked", pid)
        for _ in range(4):
            group.create_task(churn(substrate, spec))


asyncio.run(main())
