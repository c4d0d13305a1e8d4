"""`Substrate` and `Sandbox`, each method of which waits for its asynchronous twin. See `core.contract`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Never, Self, TypeVar

from dutyfree.blocking.bridge import Bridge
from dutyfree.blocking.part import Forward, Mirror, Process, Shell, Snapshot
from dutyfree.core import contract
from dutyfree.core.contract import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Capabilities,
    Command,
    FileInfo,
    TerminalSize,
)
from dutyfree.core.egress import Egress
from dutyfree.core.keyword import unknown_for
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Content, Inside, Network, Spec, User
from dutyfree.core.timeline import Timeline

T = TypeVar("T")


class Sandbox(Mirror):
    """One isolated place to run commands; destroyed with its block."""

    def __init__(self, bridge: Bridge, sandbox: contract.Sandbox) -> None:
        self._bridge = bridge
        self._sandbox = sandbox
        self.id: str = sandbox.id
        self.spec: Spec = sandbox.spec
        self.network: Network | Egress = sandbox.network
        self.timeline: Timeline = sandbox.timeline
        self.capabilities: Capabilities = sandbox.capabilities

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.destroy()

    @property
    def twin(self) -> contract.Sandbox:
        """The asynchronous sandbox, whose calls belong to the connection's own loop: see `Substrate.reach`."""
        return self._sandbox

    @property
    def alive(self) -> bool:
        """False once its end is known."""
        return self._sandbox.alive

    def run(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: Inside | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Content = b"",
        user: User | None = None,
        merge_stderr: bool = False,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        kill_on_output_limit: bool = False,
        background: bool = False,
        **unknown: Never,
    ) -> Outcome:
        """Run a command to its end."""
        if unknown:
            raise unknown_for(Sandbox.run, unknown)
        return self._bridge.call(
            self._sandbox.run(
                command,
                timeout_s=timeout_s,
                cwd=cwd,
                env=env,
                stdin=stdin,
                user=user,
                merge_stderr=merge_stderr,
                output_limit_bytes=output_limit_bytes,
                kill_on_output_limit=kill_on_output_limit,
                background=background,
            )
        )

    def start(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: Inside | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Content | None = b"",
        user: User | None = None,
        merge_stderr: bool = False,
        terminal: TerminalSize | None = None,
        background: bool = False,
        **unknown: Never,
    ) -> Process:
        """Give a command its `Process`."""
        if unknown:
            raise unknown_for(Sandbox.start, unknown)
        process = self._bridge.call(
            self._sandbox.start(
                command,
                timeout_s=timeout_s,
                cwd=cwd,
                env=env,
                stdin=stdin,
                user=user,
                merge_stderr=merge_stderr,
                terminal=terminal,
                background=background,
            )
        )
        return Process(self._bridge, process)

    def shell(
        self, *, cwd: Inside | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Shell:
        """Open a persistent shell."""
        return Shell(self._bridge, self._bridge.call(self._sandbox.shell(cwd=cwd, env=env, user=user)))

    def read(self, path: Inside, *, offset: int = 0, length: int | None = None, user: User | None = None) -> bytes:
        """A file's bytes, or a part of them."""
        return self._bridge.call(self._sandbox.read(path, offset=offset, length=length, user=user))

    def write(
        self, path: Inside, data: Content, *, mode: int = 0o644, append: bool = False, user: User | None = None
    ) -> None:
        """Create or replace a file, with the directories above it."""
        self._bridge.call(self._sandbox.write(path, data, mode=mode, append=append, user=user))

    def stat(self, path: Inside, *, follow: bool = True, user: User | None = None) -> FileInfo:
        """Describe the file at a path."""
        return self._bridge.call(self._sandbox.stat(path, follow=follow, user=user))

    def mkdir(self, path: Inside, *, mode: int = 0o755, user: User | None = None) -> None:
        """Make a directory and those above it."""
        self._bridge.call(self._sandbox.mkdir(path, mode=mode, user=user))

    def remove(self, path: Inside, *, recursive: bool = False, user: User | None = None) -> None:
        """Remove a file, a link or a directory."""
        self._bridge.call(self._sandbox.remove(path, recursive=recursive, user=user))

    def rename(self, source: Inside, target: Inside, *, user: User | None = None) -> None:
        """Rename; replaces a file at `target`."""
        self._bridge.call(self._sandbox.rename(source, target, user=user))

    def upload(self, local: Path | str, remote: Inside) -> None:
        """Copy a local file or tree into the sandbox."""
        self._bridge.call(self._sandbox.upload(local, remote))

    def download(self, remote: Inside, local: Path | str, *, limit_bytes: int = 1 << 30) -> None:
        """Copy a file or tree out, to exactly `local`, which must not exist."""
        self._bridge.call(self._sandbox.download(remote, local, limit_bytes=limit_bytes))

    def expose(self, port: int) -> Forward:
        """Relay a port of the host's loopback to `port` inside the sandbox."""
        return Forward(self._bridge, self._bridge.call(self._sandbox.expose(port)))

    def provide(self, port: int, address: str | tuple[str, int]) -> Forward:
        """Listen on `port` of the sandbox's loopback; relay each connection to `address`."""
        return Forward(self._bridge, self._bridge.call(self._sandbox.provide(port, address)))

    def snapshot(self, key: str | None = None, *, spec: Spec | None = None) -> Snapshot:
        """Save the files as they are now, as an image that `create` can start from."""
        return Snapshot(self._bridge, self._bridge.call(self._sandbox.snapshot(key, spec=spec)))

    def fork(self, n: int) -> tuple[Sandbox, ...]:
        """`n` sandboxes that start from this one's present state."""
        return tuple(type(self)(self._bridge, box) for box in self._bridge.call(_forked(self._sandbox, n)))

    def reset(self) -> None:
        """Return to the state at creation."""
        self._bridge.call(self._sandbox.reset())

    def destroy(self) -> None:
        """End everything the sandbox owns and wait until it is gone."""
        self._bridge.end(self._sandbox.destroy())

    # Last, since within the class its name hides the built-in type.
    def list(self, path: Inside, *, limit: int = 100_000, user: User | None = None) -> list[FileInfo]:
        """A directory's entries, sorted by name."""
        return self._bridge.call(self._sandbox.list(path, limit=limit, user=user))


class Substrate(Mirror):
    """Something that hands out sandboxes; closed with its block."""

    def __init__(self, bridge: Bridge, substrate: contract.Substrate) -> None:
        self._bridge = bridge
        self._substrate = substrate
        self._closed = False
        self.name: str = substrate.name
        self.version: str = substrate.version
        self.capabilities: Capabilities = substrate.capabilities

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def create(self, spec: Spec | None = None, **unknown: Never) -> Sandbox:
        """A sandbox as `spec` says: destroy it, or use it as a block."""
        return Sandbox(self._bridge, self._bridge.call(awaited(self._substrate.create(spec, **unknown))))

    async def create_async(self, spec: Spec | None = None) -> Sandbox:
        """`create` for a caller that runs an event loop of its own: that loop goes on meanwhile."""
        return Sandbox(self._bridge, await self._bridge.reach(awaited(self._substrate.create(spec))))

    def holds(self, image: str) -> bool:
        """Say whether `create` could start from this image at once."""
        return self._bridge.call(self._substrate.holds(image))

    def image_key(self, image: str) -> str:
        """Return a key that changes when the image's content changes."""
        return self._bridge.call(self._substrate.image_key(image))

    def image_bytes(self, image: str) -> int | None:
        """Size of the image's files; None: it cannot be told."""
        return self._bridge.call(self._substrate.image_bytes(image))

    @property
    def stocked(self) -> int:
        """Prepared sandboxes that creations take from."""
        return self._substrate.stocked

    def remove_snapshot(self, key: str) -> None:
        """Give up the snapshot of that key."""
        self._bridge.call(self._substrate.remove_snapshot(key))

    async def reach(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a call of the asynchronous twin from an event loop of the caller's: `reach(box.twin.run("true"))`."""
        return await self._bridge.reach(work)

    def close(self) -> None:
        """Destroy what is left, release everything, end the loop's thread. Calling it twice is fine."""
        if not self._closed:
            self._closed = True
            try:
                self._bridge.end(self._substrate.close())
            finally:
                self._bridge.close()


async def awaited(pending: Pending[T]) -> T:
    """Wait for a pending value inside a coroutine."""
    return await pending


async def _forked(sandbox: contract.Sandbox, n: int) -> Sequence[contract.Sandbox]:
    """All of them, or none: if one cannot be started, the others are destroyed."""
    tasks = [asyncio.ensure_future(awaited(pending)) for pending in await sandbox.fork(n)]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        made = await asyncio.gather(*tasks, return_exceptions=True)
        for box in made:
            if isinstance(box, contract.Sandbox):
                await finish(box.destroy())
        raise
