"""A client that kills itself: run by `test_client_killed` as `killed_client.py SUBSTRATE MOMENT MARK`.

The moment is a fraction of what a creation takes here, as seen from one just before; beyond 1 a command is running.
"""

import asyncio
import os
import signal
import sys
import time

from dutyfree.core.spec import Spec
from dutyfree.substrates.registry import connect


async def main(name, moment, mark):
    async with connect(name) as substrate:
        start_s = time.monotonic()
        async with substrate.create(Spec(image="bench")):
            took_s = time.monotonic() - start_s
        asyncio.get_running_loop().call_later(float(moment) * took_s, os.kill, os.getpid(), signal.SIGKILL)
        async with substrate.create(Spec(image="bench")) as box:
            await box.run(["sleep", mark])


asyncio.run(main(*sys.argv[1:]))
