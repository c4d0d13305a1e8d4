"""`EmbeddedSubstrate`: a library's machines as sandboxes, by an exec call per action or by our agent on one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from dutyfree.core.contract import Capabilities, Sandbox
from dutyfree.core.errors import Misuse
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.substrates.boot import Birth, Defaults, boot_agent
from dutyfree.substrates.embedded.stream import Line
from dutyfree.substrates.embedded.vendor import Library
from dutyfree.substrates.hosted.substrate import NAME_LABEL, HostedSubstrate
from dutyfree.substrates.hosted.vendor import Machine
from dutyfree.substrates.sweep import OWNER_LABEL, owner_mark

AGENT_PLACE = "/opt/dutyfree"
"""Where the directory of our programs appears in a machine, read-only."""

AGENT_INSIDE = f"{AGENT_PLACE}/dutyfree-agent"


class EmbeddedSubstrate(HostedSubstrate):
    """Machines of one library."""

    def __init__(self, name: str, library: Library, capabilities: Capabilities) -> None:
        super().__init__(name, library, capabilities)
        self._library = library
        self._bringing = asyncio.Lock()

    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        if self.capabilities.dispatch == "api":
            return await super()._make(spec, name, start_ns)
        machine = await self._started(spec, {OWNER_LABEL: owner_mark(), NAME_LABEL: name})
        if self._closed:
            await finish(machine.end())
            raise Misuse("the substrate was closed meanwhile", driver=self.name)
        line = Line(machine.execute, [AGENT_INSIDE])

        async def release() -> None:
            self._boxes = {box for box in self._boxes if box.id != name}
            await line.close()
            await machine.end()

        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=release,
            failure=line.reason, defaults=machine.defaults, start_ns=start_ns,
        )  # fmt: skip
        return await boot_agent(birth, line.ours)

    async def _started(self, spec: Spec, marks: Mapping[str, str]) -> Machine:
        """With an image that the library knows."""
        if not self._is_ours(spec.image):
            return await super()._started(spec, marks)
        image = await self._image(spec.image)
        async with self._bringing:
            known = await self._library.bring(image)
        machine = await super()._started(replace(spec, image=known), marks)
        machine.defaults = Defaults(env=image.env, cwd=image.cwd or "/root", user=image.user)
        return machine

    def _is_ours(self, image: str) -> bool:
        return image in ("host", "bench") or image.startswith("/") or self._store.named(image) is not None
