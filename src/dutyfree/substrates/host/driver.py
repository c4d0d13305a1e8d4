"""Driver `host`, and the substrate that makes its sandboxes."""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import shutil
from collections.abc import Mapping

from dutyfree.core.contract import Availability, Capabilities, Driver, Sandbox, Substrate
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.core.keyword import check_names
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.driver.offer import check_offered, strictest_network
from dutyfree.driver.owner import owner_mark
from dutyfree.substrates.host.directory import make_directory, sweep_orphans
from dutyfree.substrates.host.sandbox import HostSandbox

CAPABILITIES = Capabilities(
    isolation="none",
    dispatch="api",
    networks=frozenset({"host"}),
    storages=frozenset({"disk", "memory"}),
    stream=True,
    shell=True,
    notes={
        "isolation": "commands run on the machine itself, as the user who runs Python",
        "limits": "plain subprocesses have none",
        "networks": "commands see the machine's own network",
        "users": "another user would need a fork instead of the quick vfork",
        "terminal": "a controlling terminal would need code between fork and exec",
        "forward": "the machine's ports are the sandbox's",
        "snapshot": "absolute paths are the machine's own, and no copy of a directory holds what was done to those",
        "process_tree": "a child that leaves its session by a double fork is not found",
    },
)


class HostSubstrate(Substrate):
    """Temporary directories on this machine."""

    name = "host"
    capabilities = CAPABILITIES

    def __init__(self, version: str, interpreter: bytes) -> None:
        self.version = version
        self._interpreter = interpreter
        self._mark = owner_mark()
        self._boxes: dict[HostSandbox, list[asyncio.TimerHandle]] = {}
        self._numbers = itertools.count(1)
        self._no_input = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._closed = False

    async def _create(self, spec: Spec) -> Sandbox:
        start_ns = now_ns()
        self._check(spec)
        box = HostSandbox(
            id=f"host-{os.getpid()}-{next(self._numbers)}",
            spec=spec,
            capabilities=self.capabilities,
            directory=make_directory(self._mark, spec.storage),
            interpreter=self._interpreter,
            no_input=self._no_input,
            released=self._released,
        )
        self._boxes[box] = []
        self._arm(box)
        made_ns = now_ns()
        box.timeline.add("create", start_ns, made_ns)
        box.timeline.add("ready", made_ns, made_ns)
        return box

    async def holds(self, image: str) -> bool:
        """The machine itself."""
        return image == "host"

    async def image_key(self, image: str) -> str:
        """There is one image, and nobody can tell whether it has changed."""
        self._check_image(image)
        return image

    async def close(self) -> None:
        """Destroy what is left."""
        for box in list(self._boxes):
            await box.destroy()
        if not self._closed:
            self._closed = True
            os.close(self._no_input)

    def _check_image(self, image: str) -> None:
        if image != "host":
            raise Misuse(f"{image!r} is not known: there is only 'host'", field="image", driver=self.name)

    def _check(self, spec: Spec) -> None:
        if self._closed:
            raise Misuse("the substrate is closed", driver=self.name)
        self._check_image(spec.image)
        if spec.cwd is not None and not os.path.isdir(spec.cwd):
            raise Misuse(f"{spec.cwd!r} is not a directory", field="cwd", driver=self.name)
        check_offered(spec, spec.network or strictest_network(self.capabilities), self.capabilities, driver=self.name)

    def _arm(self, box: HostSandbox) -> None:
        loop, timers = asyncio.get_running_loop(), self._boxes[box]
        if box.spec.lifetime_s is not None:
            timers.append(loop.call_later(box.spec.lifetime_s, box.lose, "its lifetime has passed"))
        if box.spec.idle_s is not None:
            self._watch_idle(box, box.spec.idle_s)

    def _watch_idle(self, box: HostSandbox, idle_s: float) -> None:
        """Look again when the time could be up, counted from the last use."""
        left_s = idle_s if box.busy else idle_s - (now_ns() - box.used_ns) / 1e9
        if left_s <= 0:
            box.lose("it was idle for too long")
            return
        timers = self._boxes[box]
        timers.append(asyncio.get_running_loop().call_later(left_s, self._watch_idle, box, idle_s))

    def _released(self, box: HostSandbox) -> None:
        for timer in self._boxes.pop(box, ()):
            timer.cancel()


class HostDriver(Driver):
    """The entry point's object."""

    name = "host"
    summary = "plain subprocesses on this machine, no isolation: the reference"

    def declared(self) -> list[Capabilities]:
        """The same everywhere."""
        return [CAPABILITIES]

    def probe(self) -> Availability:
        """Linux with pidfds, and a shell."""
        version = f"python {platform.python_version()}, linux {platform.release()}"
        if not hasattr(os, "pidfd_open"):
            return Availability(available=False, reason="needs Linux 5.3 or later", version=version)
        reason = "no isolation: commands run on the machine itself"
        return Availability(available=True, reason=reason, version=version, capabilities=CAPABILITIES)

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Nothing to start; what owners that were killed left behind is removed."""
        check_names(options, (), driver=self.name)
        found = self.probe()
        if not found.available:
            raise Unavailable(found.reason, driver=self.name)
        await sweep_orphans()
        return HostSubstrate(found.version or "", (shutil.which("bash") or "sh").encode())


driver = HostDriver()
