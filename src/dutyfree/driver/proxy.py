"""`SandboxProxy`: a sandbox that forwards every action to another one. Leases of a pool are such sandboxes.

Knows nothing of the sandbox beneath. Snapshots, forks, resets and the end are written by the subclass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dutyfree.core.contract import Command, FileInfo, Forward, Process, Sandbox, Shell
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Content, Inside


class SandboxProxy(Sandbox):
    """`inner` may be replaced at any time: what was asked of the former one ends with it."""

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.id = inner.id
        self.spec = inner.spec
        self.network = inner.network
        self.timeline = inner.timeline
        self.capabilities = inner.capabilities

    @property
    def alive(self) -> bool:
        """Pass on what the sandbox beneath knows."""
        return self.inner.alive

    @contextmanager
    def _using(self) -> Iterator[Sandbox]:
        """Around every action: who counts, times or explains them does it here."""
        yield self.inner

    def _acting(self, options: dict[str, Any]) -> dict[str, Any]:
        """Complete the options of a file method; for whoever has a user of its own."""
        return options

    async def run(self, command: Command, **options: Any) -> Outcome:
        """Run a command to its end."""
        with self._using() as box:
            return await box.run(command, **options)

    async def start(self, command: Command, **options: Any) -> Process:
        """Give a command its `Process`."""
        with self._using() as box:
            return await box.start(command, **options)

    async def shell(self, **options: Any) -> Shell:
        """Open a persistent shell."""
        with self._using() as box:
            return await box.shell(**options)

    async def read(self, path: Inside, **options: Any) -> bytes:
        """A file's bytes, or a part of them."""
        with self._using() as box:
            return await box.read(path, **self._acting(options))

    async def write(self, path: Inside, data: Content, **options: Any) -> None:
        """Create or replace a file."""
        with self._using() as box:
            await box.write(path, data, **self._acting(options))

    async def stat(self, path: Inside, **options: Any) -> FileInfo:
        """Describe the file at a path."""
        with self._using() as box:
            return await box.stat(path, **self._acting(options))

    async def list(self, path: Inside, **options: Any) -> list[FileInfo]:
        """A directory's entries."""
        with self._using() as box:
            return await box.list(path, **self._acting(options))

    async def mkdir(self, path: Inside, **options: Any) -> None:
        """Make a directory."""
        with self._using() as box:
            await box.mkdir(path, **self._acting(options))

    async def remove(self, path: Inside, **options: Any) -> None:
        """Remove a file or a directory."""
        with self._using() as box:
            await box.remove(path, **self._acting(options))

    async def rename(self, source: Inside, target: Inside, **options: Any) -> None:
        """Rename as rename(2) does."""
        with self._using() as box:
            await box.rename(source, target, **self._acting(options))

    async def upload(self, local: Path | str, remote: Inside) -> None:
        """Copy a local file or tree into the sandbox."""
        with self._using() as box:
            await box.upload(local, remote)

    async def download(self, remote: Inside, local: Path | str, **options: Any) -> None:
        """Copy a file or tree out."""
        with self._using() as box:
            await box.download(remote, local, **options)

    async def expose(self, port: int) -> Forward:
        """Relay a port of the host's loopback to `port` inside."""
        with self._using() as box:
            return await box.expose(port)

    async def provide(self, port: int, address: str | tuple[str, int]) -> Forward:
        """Listen on `port` inside; relay to `address`."""
        with self._using() as box:
            return await box.provide(port, address)
