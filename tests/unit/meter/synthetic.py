"""A substrate whose delays are known: commands really run, in a directory of their own, and time is a counter.

It satisfies the whole contract the trials use. Faults can be asked for: lose the sandbox, answer nonsense, hang.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree.core.contract import Capabilities, Sandbox, Substrate
from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.core.outcome import Outcome
from dutyfree.core.pending import Pending
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import Timeline

MS = 1_000_000


@dataclass(eq=False)
class VirtualClock:
    """Nanoseconds that pass only when somebody says so."""

    ns: int = 10**12

    def __call__(self) -> int:
        return self.ns

    def advance(self, ns: int) -> None:
        self.ns += ns


@dataclass(frozen=True, kw_only=True)
class Delays:
    """Nanoseconds of everything the substrate does."""

    queue: int = 3 * MS
    create: int = 20 * MS
    ready: int = 10 * MS
    dispatch: int = 2 * MS
    run: int = 5 * MS
    upload: int = 4 * MS
    reset: int = 6 * MS
    fork: int = 1 * MS
    destroy: int = 7 * MS


@dataclass(kw_only=True)
class Faults:
    """What goes wrong, counted over the substrate's whole life."""

    lose_at: int | None = None
    """The n-th command loses its sandbox."""
    nonsense_at: int | None = None
    hang_at: int | None = None
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it hangs."""
    commands: int = 0
    images: frozenset[str] = frozenset({"host"})


class SyntheticSandbox(Sandbox):
    def __init__(self, owner: SyntheticSubstrate, spec: Spec) -> None:
        self.owner, self.spec = owner, spec
        self.id = f"synthetic-{len(owner.made)}"
        self.capabilities = owner.capabilities
        self.timeline = Timeline()
        self.home = Path(tempfile.mkdtemp(prefix="synthetic-"))
        self.there = True

    @property
    def alive(self):
        return self.there

    async def run(self, command, *, cwd=None, stdin=b"", **_):
        self.owner.faults.commands += 1
        number, faults, delays = self.owner.faults.commands, self.owner.faults, self.owner.delays
        if number == faults.lose_at:
            await self.destroy()
        if not self.there:
            raise SandboxLost("the sandbox is gone", driver="synthetic", sandbox=self.id)
        if number == faults.hang_at:
            faults.hanging.set()
            await asyncio.Event().wait()
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), **self.spec.env}
        try:
            done = await asyncio.to_thread(
                subprocess.run, argv, cwd=cwd or self.home, env=env, input=stdin, capture_output=True, check=False
            )
        except FileNotFoundError:
            return Outcome(ending="exit", exit_code=127)
        self.owner.clock.advance(delays.dispatch + delays.run)
        stdout = b"nonsense" if number == faults.nonsense_at else done.stdout
        return Outcome(
            ending="exit",
            exit_code=done.returncode,
            stdout=stdout,
            stderr=done.stderr,
            run_ns=delays.run,
            total_ns=delays.run + delays.dispatch,
        )

    async def upload(self, local, remote):
        shutil.copytree(local, remote, symlinks=True)
        self.owner.clock.advance(self.owner.delays.upload)

    async def reset(self):
        shutil.rmtree(self.home)
        self.home.mkdir()
        self.owner.clock.advance(self.owner.delays.reset)

    async def fork(self, n):
        return [Pending(self._child(), SyntheticSandbox.destroy) for _ in range(n)]

    async def _child(self):
        child = SyntheticSandbox(self.owner, self.spec)
        shutil.copytree(self.home, child.home, dirs_exist_ok=True)
        self.owner.made.append(child)
        begin = self.owner.clock()
        self.owner.clock.advance(self.owner.delays.fork)
        child.timeline.add("create", begin, self.owner.clock())
        return child

    async def destroy(self):
        if self.there:
            self.there = False
            shutil.rmtree(self.home)
            self.owner.clock.advance(self.owner.delays.destroy)

    async def read(self, path, *, offset=0, length=None):
        data = Path(path).read_bytes()[offset:]
        return data if length is None else data[:length]

    async def write(self, path, data, *, mode=0o644, append=False):
        Path(path).write_bytes((Path(path).read_bytes() if append else b"") + data)

    async def stat(self, path, *, follow=True):
        raise FileNotFoundError(path)

    async def list(self, path, *, limit=100_000):
        return []

    async def mkdir(self, path, *, mode=0o755):
        Path(path).mkdir(parents=True, exist_ok=True)

    async def remove(self, path, *, recursive=False):
        Path(path).unlink()

    async def rename(self, source, target):
        Path(source).rename(target)

    async def download(self, remote, local, *, limit_bytes=1 << 30):
        shutil.copytree(remote, local)


@dataclass(eq=False)
class SyntheticSubstrate(Substrate):
    clock: VirtualClock = field(default_factory=VirtualClock)
    delays: Delays = field(default_factory=Delays)
    faults: Faults = field(default_factory=Faults)
    resets: bool = False
    forks: bool = False
    made: list[SyntheticSandbox] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = "synthetic"
        self.version = "synthetic 1"
        self.capabilities = Capabilities(
            isolation="none",
            dispatch="api",
            networks=frozenset({"host"}),
            storages=frozenset({"memory"}),
            reset=self.resets,
            fork=self.forks,
        )

    async def _create(self, spec: Spec) -> SyntheticSandbox:
        if spec.image not in self.faults.images:
            raise Misuse(f"no image is called {spec.image!r}", field="image")
        box = SyntheticSandbox(self, spec)
        self.made.append(box)
        self.clock.advance(self.delays.queue)
        for name in ("create", "ready"):
            begin = self.clock()
            self.clock.advance(getattr(self.delays, name))
            box.timeline.add(name, begin, self.clock())
        return box

    async def close(self) -> None:
        for box in self.made:
            await box.destroy()

    @property
    def living(self) -> int:
        return sum(box.there for box in self.made)
