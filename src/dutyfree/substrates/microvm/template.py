"""`Template`: a machine at a standstill, from which others start: its memory in a file, its devices' state in another.

    <home>/machines/templates/<key>/      memory, state, disk (a link to the image's), facts.json
    <home>/machines/snapshots/<key>/      the same, of a running sandbox, kept under a name

Clones map the memory copy-on-write, so the file stays as it is. A template appears by one rename, whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dutyfree.core.pending import finish
from dutyfree.driver.backend import ImageDefaults
from dutyfree.image.store import delete
from dutyfree.substrates.qemu.control import clock
from dutyfree.substrates.qemu.machine import NOBODY, Boot, Machine, Memory, booted, speaking, start_machine
from dutyfree.substrates.qemu.plan import Hardware
from dutyfree.substrates.qemu.state import load, save

WARM = ("call /bin/bash -c true", "call /usr/bin/python3 -c pass", "call /bin/sh -c true")
"""What a template has run before it stands still: their files are then in every clone's memory. Absent ones do no harm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts of a template that a clone needs."""

    hardware: Hardware
    generation: int = 1
    """Of the agent that a clone starts."""
    limits: tuple[str, ...] = ()
    """Those that hold already for what runs in it."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None

    @property
    def defaults(self) -> ImageDefaults:
        """Of the image it began with."""
        return ImageDefaults(env=self.env, cwd=self.cwd, user=self.user)


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """One of them, on disk."""

    path: Path
    facts: Facts

    def start(self, driver: str) -> Machine:
        """A process that waits for `load`."""
        return start_machine(
            self.facts.hardware,
            driver=driver,
            disks=[self.path / "disk"],
            memory=Memory(path=self.path / "memory", share=False),
            generation=self.facts.generation,
        )

    async def wake(self, machine: Machine) -> None:
        """Let a process that `start` gave become a clone."""
        await load(machine, self.path / "state", memory=False)
        await resume(machine)  # it stood still when it was saved

    def remove(self) -> None:
        """Delete it; clones that run keep their memory."""
        delete(self.path)


def read_template(path: Path) -> Template | None:
    """The template at a path; None: there is none."""
    try:
        facts = json.loads((path / "facts.json").read_text())
    except FileNotFoundError:
        return None
    hardware = Hardware(**facts.pop("hardware"))
    return Template(path=path, facts=Facts(hardware=hardware, **{**facts, "limits": tuple(facts["limits"])}))


async def boot_template(path: Path, facts: Facts, disk: Path, boot: Boot, driver: str) -> None:
    """Boot a machine and keep it, standing still, in a new directory. Nothing is left on failure."""
    try:
        memory = _begin(path, facts, disk)
        machine = start_machine(
            facts.hardware, driver=driver, disks=[disk], boot=boot, memory=memory, generation=0, agent=False
        )
        try:
            await booted(machine)
            await machine.control.order("loopback", *WARM)
            await save(machine, path / "state", memory=False)
        finally:
            await finish(machine.end())
    except BaseException:
        delete(path)
        raise


async def live_template(path: Path, facts: Facts, disk: Path, original: Machine) -> None:
    """Keep what a running machine is now, in a new directory; it runs on. Nothing is left on failure.

    Its memory is private, so it goes through a stream into a second process, whose memory is a file.
    """
    driver = original.driver
    try:
        memory = _begin(path, facts, disk)
        try:
            await save(original, path / "stream", memory=True)
        finally:
            await finish(_go_on(original))
        copy = start_machine(
            facts.hardware, driver=driver, disks=[disk], memory=memory, generation=0, agent=False, paused=True
        )
        try:
            await speaking(copy)
            await load(copy, path / "stream", memory=True)
            await save(copy, path / "state", memory=False)
        finally:
            await finish(copy.end())
        (path / "stream").unlink()
    except BaseException:
        delete(path)
        raise


async def resume(machine: Machine) -> None:
    """Let a machine that stands still run."""
    await machine.monitor.call("cont")


async def _go_on(machine: Machine) -> None:
    """Its clock stood still too."""
    await resume(machine)
    await machine.control.order(clock())


def _begin(path: Path, facts: Facts, disk: Path) -> Memory:
    path.mkdir(mode=0o711)
    os.link(disk, path / "disk")
    (path / "facts.json").write_text(json.dumps(asdict(facts), default=dict))
    with (path / "memory").open("xb") as file:
        file.truncate(facts.hardware.memory_bytes)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), NOBODY, NOBODY)
    return Memory(path=path / "memory", share=True)
