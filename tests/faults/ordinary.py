"""What an ordinary user gets, as one line of JSON: run by `test_ordinary_user`, as somebody who is not root."""

import asyncio
import json
import os
import sys

import dutyfree
from dutyfree.substrates.registry import find


async def attempt(work):
    try:
        return await work
    except dutyfree.DutyfreeError as error:
        return f"{type(error).__name__}: {error}"


async def use(substrate):
    async with substrate.create() as box, substrate.create() as sibling:
        await box.write("/tmp/file", b"written\n")
        late = await box.run("setsid sleep 1000 & sleep 1000", timeout_s=0.2)
        who = await box.run(["id", "-u"])
        shell = await box.shell()
        await shell.run("cd /tmp; word=kept")
        kept = await shell.run("echo $PWD $word")
        await shell.close()
        posture = (await box.read("/proc/self/status")).decode()
        return {
            "read": (await box.read("/tmp/file")).decode(),
            "sibling_sees": [entry.name for entry in await sibling.list("/tmp")],
            "late": late.ending,
            "who": who.stdout.decode().strip(),
            "shell": kept.stdout.decode().strip(),
            "network": (await box.run("cat /proc/net/dev | tail -n +3 | cut -d: -f1")).stdout.decode().split(),
            "seccomp": [line for line in posture.splitlines() if line.startswith("Seccomp:")],
            "passwd": (await box.run(["cat", "/etc/shadow"])).ok,
        }


async def main():
    found = find("native")[0].probe()
    async with dutyfree.connect("native", cgroup="none") as substrate:
        abilities = substrate.capabilities
        limits = {"memory_bytes": 64 << 20, "cpus": 0.5, "pids": 64, "disk_bytes": 16 << 20, "files": 1000}
        refused = {}
        for name, value in limits.items():
            box = await attempt(substrate.create(dutyfree.Spec(limits=dutyfree.Limits(**{name: value}))))
            if isinstance(box, dutyfree.Sandbox):
                await box.destroy()
            else:
                refused[name] = box
        said = {
            "uid": os.geteuid(),
            "available": found.available,
            "reason": found.reason,
            "limits": sorted(abilities.limits),
            "notes": dict(abilities.notes),
            "refused": refused,
            "disk": str(await attempt(substrate.create(dutyfree.Spec(storage="disk")))),
            "user": str(await attempt(substrate.create(dutyfree.Spec(user="nobody")))),
            "used": await use(substrate),
        }
    sys.stdout.write(json.dumps(said))


asyncio.run(main())
