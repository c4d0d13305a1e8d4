"""A small real backend for tests of the kit: a sandbox is a directory and a process, a state is a copy of a directory."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dutyfree import driver as kit
from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import DriverError, Misuse, SandboxLost

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CAPABILITIES = kit.capabilities_for(
    "api", isolation="none", networks={"host"}, storages={"disk", "memory"}, reset=True, snapshot=True, fork=True
)


class Directory(kit.Body):
    def __init__(self, backend, order):
        self.backend = backend
        self.order = order
        self.place = backend.root / f"{order.id}-{next(backend.numbers)}"
        self.keeper = None
        self.removals = 0
        backend.bodies.append(self)

    async def start(self):
        await self.backend.at("start")
        shutil.copytree(self.order.state.content, self.place)
        self.keeper = _sleep()
        await self.backend.at("started")

    async def ready(self):
        await self.backend.at("ready")

    async def prepare(self, box):
        await self.backend.at("prepare")
        assert (await box.run(["test", "-e", str(self.place)])).ok

    async def verify(self):
        await self.backend.at("verify")

    async def execute(self, call, sink):
        await self.backend.at("execute")
        if self.keeper.poll() is not None:
            raise SandboxLost("its process ended")
        if call.cwd and not Path(call.cwd).is_dir():
            return kit.ExecEnd(126, refusal=f"chdir to cwd {call.cwd!r}: no such directory")
        # A bash whose input is a socket takes itself for a login over the network, and reads ~/.bashrc, unless it has a parent.
        words = [PATH, "SHLVL=1", *(f"{name}={value}" for name, value in call.env.items())]
        end = await kit.stream_program(["env", "-i", "-C", call.cwd or str(self.place), *words, *call.argv], call, sink)
        return kit.ExecEnd(end.code)

    async def remove(self):
        self.removals += 1
        await self.backend.at("remove")
        if self.keeper is not None:
            self.keeper.kill()
            self.keeper.wait()
        shutil.rmtree(self.place, ignore_errors=True)


def _sleep():
    return subprocess.Popen(["sleep", "600"])


class Directories(kit.Backend):
    name = "directories"
    version = "directories 1"
    capabilities = CAPABILITIES

    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix=f"dutyfree-{os.getpid()}-kit-"))
        self.numbers = iter(range(1 << 30))
        self.bodies = []
        self.failing = set()
        self.points = 0
        self.states = Copies(self)
        (self.root / "image").mkdir()

    def body(self, order):
        return Directory(self, order)

    async def at(self, point):
        """Every point is an await; one that is to fail does so here."""
        self.points += 1
        await asyncio.sleep(0)
        if point in self.failing:
            raise DriverError(f"{point} failed")

    async def close(self):
        shutil.rmtree(self.root)

    def left(self):
        """What there is besides the image."""
        return sorted(path.name for path in self.root.iterdir() if path.name != "image")


class Copies:
    def __init__(self, backend):
        self.backend = backend
        self.named = {}

    async def holds(self, image):
        return image in self.named or image == "host"

    async def find(self, image):
        await self.backend.at("find")
        if image == "host":
            return kit.State("host", self.backend.root / "image")
        if image not in self.named:
            raise Misuse(f"there is no {image!r}", field="image")
        return self.named[image]

    async def save(self, body, on, key, image):
        await self.backend.at("save")
        kept = key or f"t{next(self.backend.numbers)}"
        place = self.backend.root / f"state-{kept}"
        shutil.copytree(body.place, place)
        state = kit.State(kept, place, parent=on, image=image, temporary=key is None)
        if key is not None:
            self.named[SNAPSHOT_PREFIX + key] = state
        return state

    async def forget(self, state):
        self.named.pop(SNAPSHOT_PREFIX + state.key, None)

    async def delete(self, state):
        shutil.rmtree(state.content)
