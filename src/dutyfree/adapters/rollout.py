"""What adapters share: this process connects to each substrate once, and a rollout has one sandbox of it.

A `Rollout` may be used from any thread (`box`) and from any event loop (its own methods). Substrates are closed when the
process ends; a child that was forked connects anew. An adapter raises its framework's own error for a failure of the
machinery (`failing_as`), so that no such failure is ever taken for the agent's, or for a reward of 0.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import posixpath
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from dutyfree import blocking
from dutyfree.core.contract import Command, FileInfo, Sandbox
from dutyfree.core.egress import Egress
from dutyfree.core.errors import DutyfreeError, Misuse
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import finish
from dutyfree.core.spec import Limits, Spec
from dutyfree.warm.declaration import load

T = TypeVar("T")

VARIABLE = "DUTYFREE_SUBSTRATE"
"""Names the substrate where a framework's configuration does not."""

SIGNALLED, KILLED = 128, 137

_BUILDERS = ("warm:", "http:", "https:", "http+unix:", "ray:")
"""What builds stages by itself."""

_lock = threading.Lock()
_connected: dict[tuple[int, str], blocking.Substrate] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where rollouts start: a substrate by its name, and what is asked of it."""

    substrate: str = ""
    """As `dutyfree.connect` takes it; empty: what `DUTYFREE_SUBSTRATE` says, else `native`."""
    spec: Spec = field(default_factory=Spec)

    @property
    def name(self) -> str:
        """The substrate's name; with a pool over it where there are stages to be built."""
        name = self.substrate or os.environ.get(VARIABLE) or "native"
        return f"warm:{name}" if self.spec.stages and not name.startswith(_BUILDERS) else name


def start_of(
    *,
    substrate: str = "",
    start: str | os.PathLike[str] | Spec | None = None,
    image: str | None = None,
    cwd: str | None = None,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    network: str | list[str] | None = None,
    cpus: float | None = None,
    memory_bytes: int | None = None,
    lifetime_s: float | None = None,
) -> Start:
    """Read the settings that every adapter takes. `start` is a declaration's path (TOML, with its stages) or a `Spec`.

    The other settings win over it. A list as `network` names the hosts that may be reached.
    """
    spec = start if isinstance(start, Spec) else load(Path(start)) if start else Spec()
    given: dict[str, Any] = {"image": image, "cwd": cwd, "user": user, "lifetime_s": lifetime_s}
    if network is not None:
        given["network"] = network if isinstance(network, str) else Egress(allow=tuple(network))
    if env:
        given["env"] = {**spec.env, **env}
    limits = {name: value for name, value in (("cpus", cpus), ("memory_bytes", memory_bytes)) if value is not None}
    if limits:
        given["limits"] = Limits(**{**spec.limits.given(), **limits})  # type: ignore[arg-type]
    return Start(
        substrate=substrate, spec=replace(spec, **{name: value for name, value in given.items() if value is not None})
    )


def substrate_of(name: str) -> blocking.Substrate:
    """The process's one connection to a substrate."""
    key = os.getpid(), name
    with _lock:
        if not any(pid == key[0] for pid, _ in _connected):
            # Before the executors are shut down, whose threads a substrate's end needs: what is registered last runs
            # first, and theirs is registered by this import. `atexit` would be after all of them.
            importlib.import_module("concurrent.futures.thread")
            threading._register_atexit(close_all)  # type: ignore[attr-defined]  # noqa: SLF001 - as concurrent.futures does
        if key not in _connected:
            _connected[key] = blocking.connect(name)
        return _connected[key]


def close_all() -> None:
    """Close what this process has connected to, with all sandboxes; a later rollout connects again."""
    with _lock:
        mine = [key for key in _connected if key[0] == os.getpid()]
        closing = [_connected.pop(key) for key in mine]
    for substrate in closing:
        substrate.close()


@contextmanager
def failing_as(kind: type[Exception]) -> Iterator[None]:
    """Raise a failure of the machinery as the framework's own error for that. `Misuse` is the caller's, and passes."""
    try:
        yield
    except Misuse:
        raise
    except DutyfreeError as error:
        raise kind(str(error)) from error


def exit_status(outcome: Outcome) -> int:
    """The number that a shell would give: the exit code, or 128 and the signal; killed by us is 137."""
    if outcome.exit_code is not None:
        return outcome.exit_code
    return SIGNALLED + outcome.signal if outcome.signal else KILLED


class Rollout:
    """One sandbox, for callers with an event loop of their own; `box` is the same one for callers without."""

    def __init__(self, substrate: blocking.Substrate, box: blocking.Sandbox) -> None:
        self.box = box
        self._substrate = substrate
        self._directory = box.spec.cwd

    @property
    def twin(self) -> Sandbox:
        """The sandbox itself, of the connection's loop."""
        return self.box.twin

    async def reach(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a call of `twin`, or of something that it gave."""
        return await self._substrate.reach(work)

    async def directory(self) -> str:
        """Where actions start."""
        if self._directory is None:
            self._directory = (await self.run(["pwd"])).text().rstrip("\n")
        return self._directory

    def directory_is(self, path: str) -> None:
        """Relative paths start there from now on."""
        self._directory = path

    async def path(self, path: str) -> str:
        """An absolute path, of one that may be relative to where actions start."""
        return path if path.startswith("/") else posixpath.normpath(posixpath.join(await self.directory(), path))

    async def run(self, command: Command, **options: Any) -> Outcome:
        """`Sandbox.run`."""
        return await self._substrate.reach(self.twin.run(command, **options))

    async def read(self, path: str, **options: Any) -> bytes:
        """`Sandbox.read`."""
        return await self._substrate.reach(self.twin.read(path, **options))

    async def write(self, path: str, data: bytes, **options: Any) -> None:
        """`Sandbox.write`."""
        await self._substrate.reach(self.twin.write(path, data, **options))

    async def stat(self, path: str, **options: Any) -> FileInfo:
        """`Sandbox.stat`."""
        return await self._substrate.reach(self.twin.stat(path, **options))

    async def mkdir(self, path: str, **options: Any) -> None:
        """`Sandbox.mkdir`."""
        await self._substrate.reach(self.twin.mkdir(path, **options))

    async def upload(self, local: Path | str, remote: str) -> None:
        """`Sandbox.upload`."""
        await self._substrate.reach(self.twin.upload(local, remote))

    async def download(self, remote: str, local: Path | str) -> None:
        """`Sandbox.download`."""
        await self._substrate.reach(self.twin.download(remote, local))

    async def end(self) -> None:
        """Free the sandbox, also if the caller is cancelled meanwhile."""
        await finish(self._substrate.reach(self.twin.destroy()))


async def begin(start: Start) -> Rollout:
    """Lease a sandbox for a rollout, in an event loop."""
    substrate = await asyncio.to_thread(substrate_of, start.name)
    return Rollout(substrate, await substrate.create_async(start.spec))


def lease(start: Start) -> blocking.Sandbox:
    """Lease a sandbox for a rollout, without an event loop."""
    return substrate_of(start.name).create(start.spec)
