"""The substrate whose sandboxes are clones: of a template per image, or of a sandbox that runs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from dutyfree.core.contract import SNAPSHOT_PREFIX, Capabilities, Sandbox, Snapshot
from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.core.pending import Pending, completed, finish
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.guest.sandbox import AgentSandbox
from dutyfree.image.resolve import Image
from dutyfree.substrates.boot import Birth, boot_agent
from dutyfree.substrates.microvm.sandbox import MicrovmSandbox
from dutyfree.substrates.microvm.snapshot import Fork, LiveSnapshot
from dutyfree.substrates.microvm.stock import Stock
from dutyfree.substrates.microvm.template import Facts, Template, boot_template, live_template, read_template
from dutyfree.substrates.owning import OwningSubstrate
from dutyfree.substrates.qemu.control import bounds, fresh
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.offer import cpus_for, memory_for
from dutyfree.substrates.qemu.plan import GENERATIONS, Hardware, agent_port
from dutyfree.substrates.qemu.workshop import Workshop

MEMORY_BYTES = 512 << 20
"""Of a template, unless a sandbox asks for more; clones pay for what they change."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GROUPED = frozenset({"cpus", "memory_bytes", "pids"})


class MicrovmSubstrate(OwningSubstrate):
    """Clones in one workshop."""

    def __init__(self, workshop: Workshop, capabilities: Capabilities, stock: int) -> None:
        super().__init__(workshop.driver)
        self._store = workshop.store
        self.version = workshop.version
        self.capabilities = capabilities
        self._workshop = workshop
        self._stock_size = stock
        self._stocks: dict[Path, Stock] = {}
        self._booting: dict[Path, asyncio.Task[None]] = {}
        self._machines: dict[str, tuple[Machine, Facts, Path]] = {}
        self._anonymous: dict[str, LiveSnapshot] = {}

    async def close(self) -> None:
        """Destroy what is left, and the snapshots without a name."""
        self._closed = True
        for task in self._booting.values():
            task.cancel()
        await asyncio.gather(*self._booting.values(), return_exceptions=True)
        await super().close()
        for stock in self._stocks.values():
            await stock.close()
        for snapshot in list(self._anonymous.values()):
            await snapshot.remove()
        self._workshop.close()

    async def holds(self, image: str) -> bool:
        """There is a snapshot of that name."""
        return image.startswith(SNAPSHOT_PREFIX) and self._saved(image.removeprefix(SNAPSHOT_PREFIX)) is not None

    async def remove_snapshot(self, key: str) -> None:
        """Delete its template; clones of it are not disturbed."""
        if (there := self._saved(key)) is not None:
            await LiveSnapshot(key=key, template=there, forget=self._forget).remove()

    def stock(self, template: Template) -> Stock:
        """The processes that wait for a template."""
        if template.path not in self._stocks:
            self._stocks[template.path] = Stock(template, self.name, self._stock_size)
        return self._stocks[template.path]

    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        if spec.image.startswith(SNAPSHOT_PREFIX):
            template = self._snapshot_template(spec)
        else:
            template = await self._image_template(await self._image(spec.image), spec)
        return await self._clone(template, spec, name, start_ns)

    async def _clone(self, template: Template, spec: Spec, name: str, start_ns: int) -> MicrovmSandbox:
        disk = self._workshop.scratch("disks")
        os.link(template.path / "disk", disk)  # copies of the clone need it, and the template may be given up before
        try:
            machine = await self.stock(template).take()
        except BaseException:
            disk.unlink()
            raise

        async def release() -> None:
            self._machines.pop(name, None)
            try:
                await machine.end()
            finally:
                disk.unlink(missing_ok=True)

        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=release,
            failure=machine.words, defaults=template.facts.defaults, start_ns=start_ns,
        )  # fmt: skip
        try:
            port = agent_port(template.facts.generation)
            await machine.control.order(*fresh(name), *bounds(spec.limits, in_memory=True), f"agent {port}")
            box = await boot_agent(birth, machine.stream, kind=MicrovmSandbox)
        except BaseException:
            await finish(release())
            raise
        box.take_snapshot, box.make_fork = self._take_snapshot, self._fork
        self._machines[name] = machine, template.facts, disk
        return box

    async def _image_template(self, image: Image, spec: Spec) -> Template:
        disk = await self._workshop.disk(image)
        hardware = Hardware(
            accel=self._workshop.accel, memory_bytes=memory_for(spec, MEMORY_BYTES), cpus=cpus_for(spec)
        )
        facts = Facts(hardware=hardware, env=image.env, cwd=image.cwd, user=image.user)
        path = self._workshop.place("templates") / self._key(image, hardware)
        if not path.exists():
            if path not in self._booting:
                self._booting[path] = asyncio.ensure_future(self._boot(path, facts, disk))
            # Others may wait for the same one: a caller that is cancelled takes itself back only.
            await asyncio.shield(self._booting[path])
        os.utime(path)
        return Template(path=path, facts=facts)

    async def _boot(self, path: Path, facts: Facts, disk: Path) -> None:
        scratch = self._workshop.scratch("templates")
        try:
            await boot_template(scratch, facts, disk, self._workshop.boot, self.name)
            _publish(scratch, path)
        finally:
            self._booting.pop(path, None)

    def _key(self, image: Image, hardware: Hardware) -> str:
        digest = hashlib.sha256(self._workshop.programs)
        digest.update(f"{image.key}\0{hardware.key}\0{self._workshop.version}".encode())
        return digest.hexdigest()[:32]

    # -- copies of what runs

    def _saved(self, key: str) -> Template | None:
        if key in self._anonymous:
            return self._anonymous[key].template
        return read_template(self._workshop.place("snapshots") / key) if _KEY.fullmatch(key) else None

    def _snapshot_template(self, spec: Spec) -> Template:
        template = self._saved(spec.image.removeprefix(SNAPSHOT_PREFIX))
        if template is None:
            raise Misuse(f"there is no snapshot {spec.image!r} here", field="image", driver=self.name)
        _check_fits(spec, template.facts, self.name)
        return template

    async def _take_snapshot(self, box: AgentSandbox, key: str | None, spec: Spec) -> Snapshot:
        if key is not None and not _KEY.fullmatch(key):
            raise Misuse(f"{key!r} is no name: letters, digits, and . _ - after the first", field="key")
        if key is not None and (there := self._saved(key)) is not None:
            return LiveSnapshot(key=key, template=there, forget=self._forget)
        scratch = self._workshop.scratch("templates")
        name = key or f"{self.name}-{os.urandom(8).hex()}"
        await completed(self._copy(box, scratch, spec))
        place = scratch
        if key is not None:
            place = self._workshop.place("snapshots") / key
            _publish(scratch, place)
        template = read_template(place)
        if template is None:
            raise Misuse(f"snapshot {name!r} was removed while it was made", field="key", driver=self.name)
        made = LiveSnapshot(key=name, template=template, forget=self._forget)
        if key is None:
            self._anonymous[name] = made
        return made

    async def _copy(self, box: AgentSandbox, target: Path, spec: Spec) -> None:
        found = self._machines.get(box.id)
        if found is None:
            raise await box.link.explain()
        machine, facts, disk = found
        if facts.generation >= GENERATIONS:
            raise Unsupported(f"a copy of a copy {GENERATIONS} times over is not offered", driver=self.name)
        held = tuple(sorted(set(facts.limits) | (box.spec.limits.given().keys() & _GROUPED)))
        copied = Facts(
            hardware=facts.hardware, generation=facts.generation + 1, limits=held, **spec.over(facts)
        )  # fmt: skip
        await live_template(target, copied, disk, machine)

    async def _forget(self, snapshot: LiveSnapshot) -> None:
        self._anonymous.pop(snapshot.key, None)
        stock = self._stocks.pop(snapshot.template.path, None)
        if stock is not None:
            await stock.close()
        await asyncio.to_thread(snapshot.template.remove)

    async def _fork(self, box: AgentSandbox, n: int) -> Sequence[Pending[Sandbox]]:
        snapshot = await self._take_snapshot(box, None, box.spec)
        fork = Fork(snapshot, n)

        async def start() -> Sandbox:
            async with fork.turn():
                return await self._copy_of(box.spec, snapshot.key)

        return [Pending(start(), _destroy) for _ in range(n)]

    async def _copy_of(self, spec: Spec, key: str) -> Sandbox:
        if self._closed:
            raise Misuse("the substrate is closed", driver=self.name)
        template = self._anonymous[key].template
        name = self._name()
        box = await self._clone(template, spec, name, now_ns())
        self._boxes.add(box)
        return box


def _check_fits(spec: Spec, facts: Facts, driver: str) -> None:
    """A saved machine has the memory, the processors and the bounded processes that it has."""
    hardware = facts.hardware
    if memory_for(spec, 0) > hardware.memory_bytes or cpus_for(spec) > hardware.cpus:
        raise Unsupported("limits above what the saved machine has are not offered", driver=driver)
    new = (spec.limits.given().keys() & _GROUPED) - set(facts.limits)
    if new:
        names = ", ".join(f"limits.{name}" for name in sorted(new))
        raise Unsupported(f"{names} cannot be added to a saved machine that ran without", driver=driver)


def _publish(scratch: Path, path: Path) -> None:
    """By one rename; if another process was first, its work is taken."""
    try:
        scratch.rename(path)
    except OSError:
        Template(path=scratch, facts=Facts(hardware=Hardware(accel="tcg", memory_bytes=0))).remove()
        if not path.exists():
            raise


async def _destroy(box: Sandbox) -> None:
    await box.destroy()
