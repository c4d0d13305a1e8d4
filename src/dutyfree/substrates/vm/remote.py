"""Machines reached by ssh: nothing of ours acts inside, one connection per action."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from dutyfree.core.contract import Capabilities, Sandbox
from dutyfree.core.spec import Spec
from dutyfree.driver.exec_call import Execute
from dutyfree.image.resolve import Image
from dutyfree.image.store import delete
from dutyfree.substrates.api.sandbox import ApiSandbox
from dutyfree.substrates.boot import Birth
from dutyfree.substrates.oci.user import numbered
from dutyfree.substrates.qemu.initramfs import extra
from dutyfree.substrates.qemu.machine import Boot, Machine
from dutyfree.substrates.qemu.workshop import Workshop, memory_file
from dutyfree.substrates.vm.ssh import ORDERS, Keys, Ssh, forwarded_port
from dutyfree.substrates.vm.substrate import VmSubstrate


class SshVmSubstrate(VmSubstrate):
    """As `VmSubstrate`, with a server in the machine instead of an agent."""

    def __init__(self, workshop: Workshop, capabilities: Capabilities, *, line: str = "") -> None:
        super().__init__(workshop, capabilities, line=line)
        self._keys = Keys.make(workshop.scratch("keys"))
        self._archives: dict[str, int] = {}

    async def close(self) -> None:
        """Destroy what is left, the keys too."""
        await super().close()
        delete(self._keys.path)
        while self._archives:
            os.close(self._archives.popitem()[1])

    def _start(self, spec: Spec, disks: list[Path], image: Image, *, ethernet: bool = True) -> Machine:
        return super()._start(spec, disks, image, ethernet=ethernet)

    def _boot(self, image: Image) -> Boot:
        """The initramfs brings the server, and the image's accounts with one more."""
        if image.key not in self._archives:
            server = extra(self._keys.files(self._workshop.store.root, image.layers))
            self._archives[image.key] = memory_file(self._workshop.programs + server)
        return replace(super()._boot(image), initramfs=self._archives[image.key])

    async def _reach(self, machine: Machine, birth: Birth, image: Image) -> Sandbox:
        await machine.control.order(*self._orders(birth), *ORDERS)
        way = Ssh(keys=self._keys, port=await forwarded_port(machine), sandbox=birth.id)
        machine.stream.close()
        return self._by_exec(birth, numbered(way.execute, image.layers))

    def _by_exec(self, birth: Birth, execute: Execute) -> ApiSandbox:
        created_ns = birth.created()
        birth.defaults = replace(birth.defaults, cwd=birth.defaults.cwd or "/root")
        birth.timeline.add("ready", created_ns, created_ns)
        return ApiSandbox(birth, execute, self._floor)
