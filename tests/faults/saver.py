"""An owner that saves, forks and resets without end, and says so: to be killed."""

import asyncio
import itertools

import dutyfree


async def main() -> None:
    async with dutyfree.connect("native") as substrate, substrate.create() as box:
        for number in itertools.count():
            await box.run("mkdir -p /srv/d; cd /srv/d; for i in $(seq 200); do head -c 20000 /dev/zero >$i; done")
            print("written", flush=True)
            await box.snapshot()
            print("saved", flush=True)
            await box.snapshot(f"named-{number}")
            print("named", flush=True)
            boxes = [await pending for pending in await box.fork(2)]
            print("forked", flush=True)
            await box.reset()
            print("reset", flush=True)
            for one in boxes:
                await one.destroy()


asyncio.run(main())
