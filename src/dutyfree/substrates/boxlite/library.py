"""The library's side: its home, its images, its machines, and those that others left. The only module with its import.

A home belongs to one process at a time, by the library's own lock. Ours are numbered, and the first free one is taken, so
the images of the last run are there again; machines of dead owners in it are removed by the sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import boxlite  # type: ignore[import-untyped] # it carries no types

from dutyfree.core.errors import (
    DriverError,
    DutyfreeError,
    Misuse,
    SandboxLost,
    Saturated,
    Unavailable,
    Unsupported,
)
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.image.pack import export
from dutyfree.image.resolve import Image
from dutyfree.image.store import Store
from dutyfree.substrates.boxlite.machine import BoxliteMachine
from dutyfree.substrates.embedded.mark import machine_name, owner_in
from dutyfree.substrates.embedded.size import cpus_of, memory_mib_of
from dutyfree.substrates.hosted.boundary import Boundary

DRIVER = "boxlite"
MOST_HOMES = 64

_TAKEN = "already using directory"
_LOST = (boxlite.NotFoundError, boxlite.StoppedError, boxlite.SessionReapedError, boxlite.UpstreamUnavailableError)


class BoxliteLibrary:
    """Machines of one home. Made by `open_home`."""

    def __init__(self, runtime: Any, layouts: Path) -> None:
        self.version = f"{DRIVER} {boxlite.__version__}"
        self._runtime = runtime
        self._layouts = layouts
        self._boundary = Boundary((boxlite.BoxliteError, RuntimeError, ValueError), classify)

    async def start(self, spec: Spec, marks: Mapping[str, str], ttl_s: float) -> BoxliteMachine:  # noqa: ARG002 - ends with us
        """Boot one; it dies with this process, which its monitor watches."""
        name = machine_name(marks)
        try:
            box = await self._boundary.cross(self._runtime.create(options_of(spec), name=name))
            await self._boundary.cross(box.start())
        except BaseException:
            await finish(self.end(name))
            raise
        return BoxliteMachine(box, name, self._boundary, self.end)

    async def bring(self, image: Image) -> str:
        """Write it as an OCI layout, once for all homes; the library unpacks that when it first boots from it."""
        layout = self._layouts / image.key
        if not layout.exists():
            self._layouts.mkdir(parents=True, exist_ok=True)
            with suppress(Misuse):  # another process was first
                await asyncio.to_thread(export, image, "oci", layout)
        return str(layout)

    async def marked(self, key: str) -> Mapping[str, str]:  # noqa: ARG002 - a machine's name carries its owner and nothing else
        """All of ours, by name."""
        found = await self._boundary.cross(self._runtime.list_info())
        return {str(one.name): owner for one in found if (owner := owner_in(one.name)) is not None}

    async def end(self, machine_id: str) -> None:
        """Kill it, by name; nothing of it stays."""
        with suppress(SandboxLost):
            await self._boundary.cross(self._runtime.remove(machine_id, force=True))

    async def close(self) -> None:
        """Give up the home: its lock goes with the last reference."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await asyncio.to_thread(runtime.close)


def options_of(spec: Spec) -> Any:
    """A machine as the spec says. An image of ours is a directory."""
    ours = spec.image.startswith("/")
    return boxlite.BoxOptions(
        image=None if ours else spec.image,
        rootfs_path=spec.image if ours else None,
        cpus=cpus_of(spec, DRIVER),
        memory_mib=memory_mib_of(spec, DRIVER),
        network=boxlite.NetworkSpec(outbound=boxlite.OutboundNetworkSpec(mode="disabled")),
    )


async def open_home(given: str | None) -> BoxliteLibrary:
    """The home asked for, or the first free one of ours. `Unavailable` if it is in use."""
    kept = Store.default().root / DRIVER
    homes = [Path(given)] if given else [kept / f"home-{number}" for number in range(MOST_HOMES)]
    said = ""
    for home in homes:
        home.mkdir(parents=True, exist_ok=True)
        try:
            runtime = await asyncio.to_thread(boxlite.Boxlite, boxlite.Options(home_dir=str(home)))
        except boxlite.BoxliteError as error:
            said = " ".join(str(error).split())
            if _TAKEN in said:
                continue
            raise Unavailable(f"the library does not start: {said}", driver=DRIVER, stage="connect") from error
        return BoxliteLibrary(runtime, kept / "layouts")
    raise Unavailable(f"every home is in use: {said}", driver=DRIVER, stage="connect")


def classify(error: BaseException, words: str) -> DutyfreeError:
    """The library's errors, as ours."""
    if isinstance(error, boxlite.ImageError):
        return Misuse(f"there is no such image: {words}", field="image", driver=DRIVER)
    if isinstance(error, _LOST):
        return SandboxLost(f"the machine is gone: {words}", driver=DRIVER)
    if isinstance(error, boxlite.UnsupportedError):
        return Unsupported(words, driver=DRIVER)
    if isinstance(error, boxlite.ResourceExhaustedError):
        return Saturated(words, driver=DRIVER)
    if isinstance(error, boxlite.EngineError | boxlite.ConfigError):
        return Unavailable(words, driver=DRIVER)
    return DriverError(words, driver=DRIVER)
