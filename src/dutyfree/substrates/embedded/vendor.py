"""What a library's module implements beyond a hosted `Vendor`: it is given images instead of having them."""

from __future__ import annotations

from typing import Protocol

from dutyfree.image.resolve import Image
from dutyfree.substrates.hosted.vendor import Vendor


class Library(Vendor, Protocol):
    """Machines of a library in this process. `spec.image` is what `bring` answered, or a name of the library's own."""

    async def bring(self, image: Image) -> str:
        """Let the library have an image of our store, once; what it is called there."""
        ...
