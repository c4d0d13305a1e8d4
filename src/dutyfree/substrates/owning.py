"""`OwningSubstrate`: a substrate that knows its sandboxes by names of its own and ends them when it is closed.

For drivers that have no supervisor of their own beneath them: what they make is named after its maker, so that people
and sweeps can tell whose it is.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError, Misuse, Unsupported
from dutyfree.core.home import check_loop
from dutyfree.core.pending import finish_all
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.driver.exec_call import Execute
from dutyfree.driver.exec_command import DispatchFloor
from dutyfree.driver.offer import check_offered, strictest_network
from dutyfree.image.resolve import BUILD_BENCH, Image, resolve
from dutyfree.image.store import Store
from dutyfree.substrates.api.sandbox import ApiSandbox
from dutyfree.substrates.boot import Birth


class OwningSubstrate(Substrate):
    """A driver implements `_make`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._store = Store.default()
        self._numbers = itertools.count(1)
        self._floor = DispatchFloor()
        self._boxes: set[Sandbox] = set()
        self._closed = False

    async def _create(self, spec: Spec) -> Sandbox:
        start_ns = now_ns()
        if self._closed:
            raise Misuse("the substrate is closed", driver=self.name)
        check_offered(spec, spec.network or strictest_network(self.capabilities), self.capabilities, driver=self.name)
        box = await self._make(spec, self._name(), start_ns)
        self._boxes.add(box)
        return box

    def _name(self) -> str:
        """For a sandbox: whose it is can be told by it."""
        return f"dutyfree-{self.name}-{os.getpid()}-{next(self._numbers)}-{os.urandom(3).hex()}"

    @abstractmethod
    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        """Start one sandbox of that name; leave nothing behind on failure or cancellation."""

    async def close(self) -> None:
        """Destroy what is left."""
        check_loop(self._home)
        self._closed = True
        try:
            await finish_all([box.destroy() for box in self._boxes])
        finally:
            self._boxes.clear()
            self._store.close()

    async def image_bytes(self, image: str) -> int | None:
        """As our own store has it."""
        try:
            found = self._store.manifest((await self._image(image)).key)
        except DutyfreeError:
            return None
        return found.size_bytes if found else None

    async def _image(self, name: str) -> Image:
        """An image of our own store, as a root of its own."""
        if name == "host":
            raise Unsupported(
                "image 'host' is this machine's own /usr, which a container does not share: use image 'bench', "
                f"made by `{BUILD_BENCH}`",
                driver=self.name,
            )
        try:
            image = await asyncio.to_thread(resolve, name, self._store)
        except DutyfreeError as error:
            error.driver = self.name
            raise
        if image.binds:
            raise Unsupported("an alias of the host image is not offered in containers", driver=self.name)
        return image

    def _reached_by_exec(
        self, birth: Birth, execute: Execute, stream: socket.socket | None, remove: Callable[[], Awaitable[None]]
    ) -> ApiSandbox:
        """A sandbox whose main process lives as long as `stream` (None: until `remove`), and whose actions are exec calls."""
        created_ns = birth.created()

        async def release() -> None:
            if stream is not None:
                stream.close()
            await remove()

        birth.release = release
        birth.defaults = replace(birth.defaults, cwd=birth.defaults.cwd or "/root")
        birth.timeline.add("ready", created_ns, now_ns())
        return ApiSandbox(birth, execute, self._floor)
