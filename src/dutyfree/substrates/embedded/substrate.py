"""`EmbeddedSubstrate`: a library's machines as sandboxes, by an exec call per action or by our agent on one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from dutyfree.core.contract import Capabilities
from dutyfree.core.spec import Spec
from dutyfree.substrates.boot import Defaults
from dutyfree.substrates.embedded.vendor import Library
from dutyfree.substrates.hosted.substrate import HostedSubstrate
from dutyfree.substrates.hosted.vendor import Machine

AGENT_PLACE = "/opt/dutyfree"
"""Where the directory of our programs appears in a machine, read-only."""

AGENT_INSIDE = f"{AGENT_PLACE}/dutyfree-agent"


class EmbeddedSubstrate(HostedSubstrate):
    """Machines of one library."""

    agent_inside = AGENT_INSIDE

    def __init__(self, name: str, library: Library, capabilities: Capabilities) -> None:
        super().__init__(name, library, capabilities)
        self._library = library
        self._bringing = asyncio.Lock()

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
