"""A substrate whose sandboxes start from a chosen image: probes ask for `host`, which containers do not have."""

from __future__ import annotations

from dataclasses import replace

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import Unsupported
from dutyfree.core.spec import Spec


class Imaged(Substrate):
    """Another substrate, with its image for `host`. Owns nothing: closing it closes nothing."""

    def __init__(self, inner: Substrate, image: str) -> None:
        self.name = inner.name
        self.version = inner.version
        self.capabilities = inner.capabilities
        self._inner = inner
        self._image = image

    async def _create(self, spec: Spec) -> Sandbox:
        return await self._inner.create(replace(spec, image=self._image) if spec.image == "host" else spec)

    async def holds(self, image: str) -> bool:
        """As the other one."""
        return await self._inner.holds(image)

    async def close(self) -> None:
        """The other one is its owner's."""


async def choose_image(substrate: Substrate) -> str:
    """The machine's own programs, unless the substrate cannot show them."""
    try:
        async with substrate.create():
            return "host"
    except Unsupported:
        return "bench"
