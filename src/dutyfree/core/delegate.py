"""`Delegate`: a sandbox whose actions are another one's. For whoever hands out sandboxes with an end or a state of their own.

Knows nothing of what lies beneath; snapshots, forks, resets and the end are the subclass's to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dutyfree.core.contract import Command, FileInfo, Forward, Process, Sandbox, Shell
from dutyfree.core.outcome import Outcome


class Delegate(Sandbox):
    """`inner` may be replaced at any time: what was asked of the former one ends with it."""

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.id = inner.id
        self.spec = inner.spec
        self.timeline = inner.timeline
        self.capabilities = inner.capabilities

    @property
    def alive(self) -> bool:
        """As far as the one beneath knows."""
        return self.inner.alive

    async def run(self, command: Command, **options: Any) -> Outcome:
        """Run a command to its end."""
        return await self.inner.run(command, **options)

    async def start(self, command: Command, **options: Any) -> Process:
        """Give a command its `Process`."""
        return await self.inner.start(command, **options)

    async def shell(self, **options: Any) -> Shell:
        """Open a persistent shell."""
        return await self.inner.shell(**options)

    async def read(self, path: str, **part: Any) -> bytes:
        """A file's bytes, or a part of them."""
        return await self.inner.read(path, **part)

    async def write(self, path: str, data: bytes, **options: Any) -> None:
        """Create or replace a file."""
        await self.inner.write(path, data, **options)

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """What is there."""
        return await self.inner.stat(path, follow=follow)

    async def list(self, path: str, **options: Any) -> list[FileInfo]:
        """A directory's entries."""
        return await self.inner.list(path, **options)

    async def mkdir(self, path: str, **options: Any) -> None:
        """Make a directory."""
        await self.inner.mkdir(path, **options)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or a directory."""
        await self.inner.remove(path, recursive=recursive)

    async def rename(self, source: str, target: str) -> None:
        """As rename(2)."""
        await self.inner.rename(source, target)

    async def upload(self, local: Path | str, remote: str) -> None:
        """Copy a local file or tree into the sandbox."""
        await self.inner.upload(local, remote)

    async def download(self, remote: str, local: Path | str, **options: Any) -> None:
        """Copy a file or tree out."""
        await self.inner.download(remote, local, **options)

    async def expose(self, port: int) -> Forward:
        """Relay a port of the host's loopback to `port` inside."""
        return await self.inner.expose(port)

    async def provide(self, port: int, address: str | tuple[str, int]) -> Forward:
        """Listen on `port` inside; relay to `address`."""
        return await self.inner.provide(port, address)
