"""The substrate over a runtime program: each sandbox is a bundle, its stream the main process's own stdin and stdout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dutyfree.core.contract import Capabilities, Sandbox
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.driver.agent import AGENT_INSIDE, agent_program
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.exec import HOLD_COMMAND, HOLD_PROCESSES
from dutyfree.driver.owner import is_orphan
from dutyfree.image.resolve import Image
from dutyfree.substrates.boot import Birth, boot_agent
from dutyfree.substrates.oci.bundle import Bundle
from dutyfree.substrates.oci.config import bundle_config
from dutyfree.substrates.oci.orphan import await_start, remove_unfinished
from dutyfree.substrates.oci.user import numbered
from dutyfree.substrates.renewing import RenewingSubstrate

Flags = Callable[[Spec, Path], Sequence[str]]
"""The runtime's global flags for one sandbox, which may put its writes into the directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A runtime program as a driver wants it used."""

    driver: str
    version: str
    program: str
    flags: Flags
    capabilities: Capabilities
    overlays: bool = False
    """It keeps writes away from the image by itself."""

    @property
    def home(self) -> Path:
        """Directory of bundles and of the program's state: on a filesystem that a reboot empties."""
        return Path("/run/dutyfree") / self.driver


class OciSubstrate(RenewingSubstrate[Image]):
    """Bundles of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.driver)
        self.version = runtime.version
        self.capabilities = runtime.capabilities
        self._runtime = runtime
        self._agent = agent_program(runtime.driver) if runtime.capabilities.dispatch == "agent" else None

    async def _find(self, image: str) -> Image:
        return await self._image(image)

    async def _start(self, spec: Spec, name: str, start_ns: int, origin: Image) -> Sandbox:
        bundle = self._bundle(name, spec)
        defaults = ImageDefaults(env=origin.env, cwd=origin.cwd, user=origin.user)
        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=bundle.remove,
            defaults=defaults, start_ns=start_ns,
        )  # fmt: skip
        return await self._boot(bundle, birth, origin)

    async def sweep(self) -> list[str]:
        """Remove bundles whose owner is dead; their names."""
        home = self._runtime.home
        await asyncio.to_thread(remove_unfinished, home)
        orphans = [path.parent for path in home.glob("dutyfree-*/owner") if _is_orphans(path)]
        for path in orphans:
            # A start that its dead owner had asked for goes on by itself: what it makes is only there afterwards.
            await asyncio.to_thread(await_start, path)
            try:
                writes = (path / "writes").read_text()
            except FileNotFoundError:
                continue  # another client sweeps it
            bundle = self._bundle(path.name, Spec())
            await replace(bundle, writes=Path(writes) if writes else None).remove()
        return [path.name for path in orphans]

    def _bundle(self, name: str, spec: Spec) -> Bundle:
        home = self._runtime.home
        place = Path("/dev/shm") if spec.storage == "memory" else self._store.root / "disks"  # noqa: S108 - the kernel's own
        writes = place / name
        flags = ["--root", str(home / "state"), *self._runtime.flags(spec, writes)]
        overlaid = self._runtime.overlays and spec.storage == "memory"
        return Bundle(
            driver=self.name, name=name, home=home, runtime=[self._runtime.program, *flags],
            writes=None if overlaid else writes,
        )  # fmt: skip

    async def _boot(self, bundle: Bundle, birth: Birth, image: Image) -> Sandbox:
        config = bundle_config(
            birth.spec,
            name=bundle.name,
            rootfs=image.layers[-1],
            layers=image.layers,
            writes=None if self._runtime.overlays else bundle.writes,
            command=[AGENT_INSIDE] if self._agent else HOLD_COMMAND,
            agent=self._agent,
            env={**image.env, **birth.spec.env} if self._agent is None else {},
            keepers=1 if self._agent else HOLD_PROCESSES,
        )
        try:
            bundle.write(config)
            stream = await bundle.run()
        except BaseException:
            await finish(bundle.remove())
            raise
        if self._agent is not None:
            return await boot_agent(birth, stream)
        return self._reached_by_exec(birth, numbered(bundle.execute, image.layers), stream, bundle.remove)


def _is_orphans(mark: Path) -> bool:
    try:
        return is_orphan(mark.read_text())
    except FileNotFoundError:
        return False  # somebody else sweeps it


async def open_runtime(runtime: Runtime) -> OciSubstrate:
    """Prepare, sweep."""
    for path in (runtime.home, runtime.home / "state"):
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
    substrate = OciSubstrate(runtime)
    await substrate.sweep()
    return substrate
