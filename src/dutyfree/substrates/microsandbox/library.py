"""The library's side: its images, its machines, and what it knows of those that others left. The only module with its import."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import microsandbox
from microsandbox import Image as Images
from microsandbox import Network, PullPolicy, Sandbox, Volume
from microsandbox.types import MountConfig

from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unavailable, Unsupported
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.image.pack import export, reference
from dutyfree.image.resolve import Image
from dutyfree.substrates.boot import agent_program
from dutyfree.substrates.embedded.mark import machine_name, owner_in
from dutyfree.substrates.embedded.size import cpus_of, memory_mib_of
from dutyfree.substrates.embedded.substrate import AGENT_PLACE
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.microsandbox.machine import MicrosandboxMachine

DRIVER = "microsandbox"
KILL_S = 30.0

_LABEL = {"dutyfree": "sandbox"}
_PAGE = 100
_LOST = (
    microsandbox.SandboxNotFoundError,
    microsandbox.SandboxNotRunningError,
    microsandbox.SandboxReplacedError,
)


class Microsandbox:
    """Machines of the library on this machine."""

    def __init__(self, *, agent: bool) -> None:
        self.version = f"{DRIVER} {microsandbox.version()}"
        self._agent = agent
        self._boundary = Boundary((microsandbox.MicrosandboxError, OSError, ValueError), classify)

    async def start(self, spec: Spec, marks: Mapping[str, str], ttl_s: float) -> MicrosandboxMachine:  # noqa: ARG002 - ends with us
        """Boot one; it dies with this process, whose pipe it watches."""
        name = machine_name(marks)
        volumes: dict[str, MountConfig] = {}
        if self._agent:
            volumes[AGENT_PLACE] = Volume.bind(str(agent_program(DRIVER).parent), readonly=True)
        creating = Sandbox.create(
            name,
            image=spec.image,
            cpus=cpus_of(spec, DRIVER),
            memory=memory_mib_of(spec, DRIVER),
            network=Network.none(),
            labels=_LABEL,
            ephemeral=True,
            pull_policy=PullPolicy.IF_MISSING,
            volumes=volumes,
        )
        try:
            box = await self._boundary.cross(creating)
        except BaseException:
            await finish(self.end(name))
            raise
        return MicrosandboxMachine(box, name, self._boundary, self.end)

    async def bring(self, image: Image) -> str:
        """Load it from an archive, unless it is there."""
        known = reference(image)
        with suppress(Misuse):
            await self._boundary.cross(Images.get(known))
            return known
        with tempfile.TemporaryDirectory(prefix="dutyfree-image-") as scratch:
            archive = Path(scratch) / "image.tar"
            await asyncio.to_thread(export, image, "docker", archive)
            await self._boundary.cross(Images.load(str(archive), tag=known))
        return known

    async def marked(self, key: str) -> Mapping[str, str]:  # noqa: ARG002 - a machine's name carries its owner and nothing else
        """All of ours, by name."""
        found: dict[str, str] = {}
        cursor: str | None = None
        while True:
            page = await self._boundary.cross(Sandbox.list_with(cursor=cursor, limit=_PAGE, labels=_LABEL))
            found |= {one.name: owner for one in page.sandboxes if (owner := owner_in(one.name))}
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def end(self, machine_id: str) -> None:
        """Kill it, by name; nothing of it stays."""
        with suppress(SandboxLost):
            handle = await self._boundary.cross(Sandbox.get(machine_id))
            await self._boundary.cross(handle.destroy(force=True, timeout=KILL_S))

    async def close(self) -> None:
        """The library has nothing to close."""


def classify(error: BaseException, words: str) -> DutyfreeError:
    """The library's errors, as ours."""
    if isinstance(error, microsandbox.ImageNotFoundError | microsandbox.ImagePullFailedError):
        return Misuse(f"there is no such image: {words}", field="image", driver=DRIVER)
    if isinstance(error, _LOST):
        return SandboxLost(f"the machine is gone: {words}", driver=DRIVER)
    if isinstance(error, microsandbox.UnsupportedError | microsandbox.UnsupportedOperationError):
        return Unsupported(words, driver=DRIVER)
    if isinstance(error, microsandbox.RuntimeNotInstalledError | microsandbox.RuntimeIncompleteError):
        return Unavailable(words, enable="pip install --force-reinstall microsandbox", driver=DRIVER)
    if isinstance(error, BlockingIOError):
        return Saturated(words, driver=DRIVER)
    return DriverError(words, driver=DRIVER)
