"""The one contract: `Substrate` hands out `Sandbox`es. Drivers, pools, clients and fleets all satisfy it.

A driver overrides the methods it offers and declares them in `Capabilities`; everything else answers `Unsupported`.
What may be raised: the errors of `core.errors`, and `OSError` subclasses from file methods. A cancelled call leaves
nothing behind: neither a sandbox half created nor a process of a command half run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Never, Protocol, Self

from dutyfree.core.descriptor import told
from dutyfree.core.egress import Egress
from dutyfree.core.errors import Unsupported
from dutyfree.core.frozen import FrozenDict
from dutyfree.core.home import Belonging, check_loop
from dutyfree.core.keyword import unknown_for
from dutyfree.core.log import LOG
from dutyfree.core.outcome import Outcome, StreamName
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Content, Inside, Isolation, Network, Spec, Storage, User, check_spec
from dutyfree.core.timeline import Timeline

Command = str | Sequence[str]
"""A string is run by `bash -c` (`sh -c` where there is no bash); a list is executed directly."""

Dispatch = Literal["api", "agent"]
"""How actions reach the sandbox. api: the substrate's own exec call for each · agent: one stream to our guest agent."""

SNAPSHOT_PREFIX = "snapshot:"
"""An image of this name is a saved state, made by `Sandbox.snapshot`."""

DEFAULT_OUTPUT_LIMIT_BYTES = 16 << 20
"""Per stream: what `run` keeps of a command's output unless asked otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Abilities that a substrate offers. A report calls the rest "not offered", and not "failed"."""

    isolation: Isolation
    dispatch: Dispatch
    networks: frozenset[Network]
    storages: frozenset[Storage]
    medium: Storage | None = None
    """Storage that every sandbox writes to, whichever is asked for; None: as asked."""
    limits: frozenset[str] = frozenset()
    """Names of the `Limits` that are enforced."""
    egress: bool = False
    """`Spec.network` may be an `Egress`."""
    users: bool = False
    """Actions can run as another user than the sandbox's root."""
    stream: bool = False
    """`start`: output as it comes, input while it runs, signals."""
    terminal: bool = False
    """`start(terminal=…)`."""
    shell: bool = False
    forward: bool = False
    """`expose` and `provide`."""
    process_tree: bool = False
    """At a deadline every descendant dies, also those that left the session."""
    snapshot: bool = False
    fork: bool = False
    reset: bool = False
    stages: bool = False
    """`Spec.stages` are built, once, and kept; a driver leaves this to the pool over it."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Why something is not offered here, by field name; for people."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", FrozenDict(self.notes))


@dataclass(frozen=True, kw_only=True, slots=True)
class FileInfo:
    """Facts that the sandbox reports of one file. They are hostile input: display them, do not trust them."""

    name: str
    """Last component; bytes that are not UTF-8 as surrogate escapes."""
    kind: Literal["file", "directory", "symlink", "other"]
    size_bytes: int
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    mtime_ns: int
    """Since the epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminalSize:
    """Asks for a pseudo-terminal of this size."""

    rows: int = 24
    columns: int = 80


class Process(Protocol):
    """A command that is running: what `Sandbox.start` gives. Iterate it for output as it comes.

    A reader that stops stops the writer. A command runs to its deadline unless `wait` or `kill` or a block ends it.
    """

    def __aiter__(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """Chunks of exact bytes, in order per stream, until both streams end."""

    async def __anext__(self) -> tuple[StreamName, bytes]:
        """The next chunk. Cancelled (`asyncio.wait_for`), it has taken none and the iteration goes on."""

    async def write(self, data: Content) -> None:
        """Send to the command's stdin; returns when it has been accepted (a slow reader makes this wait)."""

    async def close_stdin(self) -> None:
        """End of input."""

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""

    async def resize(self, size: TerminalSize) -> None:
        """Tell the terminal its new size."""

    async def kill(self) -> None:
        """Kill the whole process tree; `wait` then gives ``cancelled``."""

    async def wait(self) -> Outcome:
        """The outcome, once. Output that was iterated is not repeated in it."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None:
        """Kill the command at the end of the block if it still runs."""


class Shell(Protocol):
    """A persistent shell: working directory, variables and functions survive from one `run` to the next."""

    async def run(
        self,
        script: str,
        *,
        timeout_s: float | None = None,
        stdin: Content = b"",
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Outcome:
        """Run a script in the shell. At the deadline what it started is killed; the shell survives if it can.

        After `exit` (or the shell's death) `alive` is False and further calls raise `Misuse`.
        """

    async def start(self, script: str, *, timeout_s: float | None = None, stdin: Content = b"") -> Process:
        """Run a script as `run` does, and hand back its `Process` to watch. It has no terminal and takes no later input."""

    async def interrupt(self) -> None:
        """Stop the running script as Ctrl-C does, and keep the shell."""

    @property
    def alive(self) -> bool:
        """The shell can take another `run`."""

    async def close(self) -> None:
        """End the shell and what it left running. Calling it twice is fine."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...


class Forward(Protocol):
    """A relayed port; closed by `close` or with its sandbox."""

    @property
    def port(self) -> int:
        """The port that listens: on the host's loopback for `expose`, on the sandbox's for `provide`."""

    async def close(self) -> None:
        """Stop listening and drop the connections. Calling it twice is fine."""

    async def __aenter__(self) -> Forward: ...
    async def __aexit__(self, *exc: object) -> None: ...


class Snapshot(Protocol):
    """A saved state of a sandbox: others are created from it by `Spec(image=snapshot.image)`, until it is removed."""

    @property
    def key(self) -> str:
        """The name that the snapshot is kept under."""

    @property
    def image(self) -> str:
        """The name of an image that starts from this state, on the substrate it was made on: ``snapshot:<key>``."""

    async def remove(self) -> None:
        """Give it up. Sandboxes that started from it are not disturbed. Calling it twice is fine."""


class Sandbox(Belonging, ABC):
    """One isolated place to run commands. Safe for concurrent use from one event loop."""

    id: str
    """Unique on this machine; appears in errors and logs."""
    spec: Spec
    network: Network | Egress
    """What it has: `Spec.network`, or what the substrate chose where that is None."""
    timeline: Timeline
    """`create` and `ready` are in it when the sandbox is handed out."""
    capabilities: Capabilities

    @property
    def alive(self) -> bool:
        """False once its end is known. Asks nothing of it, so True is no proof."""
        return True

    @abstractmethod
    async def run(
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
        """Run a command to its end.

        When it ends, whatever it left running is killed, unless `background`. At `timeout_s` its whole process tree is
        killed and the outcome is ``timeout``; the deadline holds even if the sandbox does not cooperate. Output beyond
        `output_limit_bytes` per stream loses its middle. Raises `Misuse` for arguments that make no sense (also a `cwd`
        or `user` the sandbox does not know), `SandboxLost` if the sandbox dies meanwhile.
        """

    async def start(
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
        """Start a command and hand back its `Process`. `stdin=None`: input comes later, by `Process.write`."""
        raise unknown_for(Sandbox.start, unknown) if unknown else self._unsupported("start")

    async def shell(
        self, *, cwd: Inside | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Shell:
        """Open a persistent shell."""
        raise self._unsupported("shell")

    async def read(
        self, path: Inside, *, offset: int = 0, length: int | None = None, user: User | None = None
    ) -> bytes:
        """A file's bytes, or a part of them. Only regular files: never blocks on a fifo or a device.

        This and the methods up to `rename` act with the rights of `user`, as `run` does, and what they make is that
        user's. None: the spec's user, else the image's, else root. Raises `Misuse` for a user the sandbox does not know,
        `Unsupported` where `capabilities.users` is False.
        """
        raise self._unsupported("read")

    async def write(
        self, path: Inside, data: Content, *, mode: int = 0o644, append: bool = False, user: User | None = None
    ) -> None:
        """Create or replace a file, with the directories above it. Not atomic for readers inside the sandbox."""
        raise self._unsupported("write")

    async def stat(self, path: Inside, *, follow: bool = True, user: User | None = None) -> FileInfo:
        """Describe the file at a path; FileNotFoundError if there is none."""
        raise self._unsupported("stat")

    async def list(self, path: Inside, *, limit: int = 100_000, user: User | None = None) -> list[FileInfo]:
        """A directory's entries, sorted by name; at most `limit`, else `Misuse` (list a smaller directory)."""
        raise self._unsupported("list")

    async def mkdir(self, path: Inside, *, mode: int = 0o755, user: User | None = None) -> None:
        """Make a directory and those above it; fine if it is there already."""
        raise self._unsupported("mkdir")

    async def remove(self, path: Inside, *, recursive: bool = False, user: User | None = None) -> None:
        """Remove a file, a link (never what it points to) or a directory."""
        raise self._unsupported("remove")

    async def rename(self, source: Inside, target: Inside, *, user: User | None = None) -> None:
        """Rename as rename(2) does: a file at `target` is replaced."""
        raise self._unsupported("rename")

    async def upload(self, local: Path | str, remote: Inside) -> None:
        """Copy a local file or tree into the sandbox, at exactly `remote`. Modes and links are kept, owners not.

        This and `download` act for the sandbox's owner: no permission bit inside stops them.
        """
        raise self._unsupported("upload")

    async def download(self, remote: Inside, local: Path | str, *, limit_bytes: int = 1 << 30) -> None:
        """Copy a file or tree out, to exactly `local`, which must not exist.

        Nothing outside `local` is ever written, whatever the sandbox answers: files, directories and links that stay
        inside only; devices, fifos and sockets are left out.
        """
        raise self._unsupported("download")

    async def expose(self, port: int) -> Forward:
        """Relay a port of the host's loopback to `port` inside the sandbox."""
        raise self._unsupported("forward")

    async def provide(self, port: int, address: str | tuple[str, int]) -> Forward:
        """Listen on `port` of the sandbox's loopback; relay each connection to an address the owner chooses.

        `address` is `(host, port)` or the path of a unix socket, as seen by the caller. This is how a sandbox without
        a network reaches the one service its owner allows.
        """
        raise self._unsupported("forward")

    async def snapshot(self, key: str | None = None, *, spec: Spec | None = None) -> Snapshot:
        """Save the files as they are now, as an image that `create` can start from; processes go on afterwards.

        The image also remembers the `env`, `cwd` and `user` of this sandbox, for whatever a later `Spec` leaves open:
        a field that is given there wins, and variables are merged. `spec` has it remember another spec's instead.
        It is complete when this returns and invisible before. `key` names it (one that is there already is kept, as
        the same recipe was run twice); without one it gets a name of its own and is removed with the substrate.
        """
        raise self._unsupported("snapshot")

    async def fork(self, n: int) -> Sequence[Pending[Sandbox]]:
        """`n` sandboxes that start from this one's present state; await or enter each."""
        raise self._unsupported("fork")

    async def reset(self) -> None:
        """Return to the state at creation, verified; if that cannot be shown, the sandbox is destroyed instead."""
        raise self._unsupported("reset")

    @abstractmethod
    async def destroy(self) -> None:
        """End everything the sandbox owns and wait until it is gone. Calling it twice, or after its death, is fine."""

    async def __aenter__(self) -> Self:
        """Enter a sandbox that was awaited before: destroyed at the end of the block."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        await finish(self.destroy())

    def _unsupported(self, ability: str) -> Unsupported:
        note = self.capabilities.notes.get(ability)
        return Unsupported(f"{ability} is not offered{': ' + note if note else ''}", sandbox=self.id)


class Substrate(Belonging, ABC):
    """Something that hands out sandboxes, and owns them: closing it destroys those that are left."""

    name: str
    version: str
    """Version of the thing itself, such as `docker 28.2.2`, not of the driver."""
    capabilities: Capabilities
    stocked: int = 0
    """Prepared sandboxes that creations take from: a cost that was paid before, and no speed."""
    _chooses_network: ClassVar[bool] = False
    """`_create` takes a spec without a network, and so needs no copy of it."""

    def create(self, spec: Spec | None = None, **unknown: Never) -> Pending[Sandbox]:
        """A sandbox as `spec` says: await it, or enter it.

        Its actions can run at once. Raises `Misuse` (the spec makes no sense here, or there is no such `cwd` or `user`
        inside), `Unsupported` (a limit or policy it cannot enforce), `Saturated`, `Unavailable`, `DriverError`.
        """
        check_spec(spec, unknown)
        wanted = spec or Spec()
        if wanted.network is None and not self._chooses_network:
            wanted = replace(wanted, network=strictest_network(self.capabilities))
        if wanted.stages and not self.capabilities.stages:
            return Pending(self._refuse_stages(), _destroy)
        return Pending(self._create_placed(wanted), _destroy)

    async def _create_placed(self, spec: Spec) -> Sandbox:
        """`_create`; a `cwd` or `user` that was asked for is tried once, so that a wrong one is told here."""
        check_loop(self._home)
        try:
            box = await self._create(spec)
        except OSError as error:
            raise told(error, self.name) from error
        LOG.debug("%s: created from %s", box.id, spec.image)
        if spec.cwd is not None or spec.user is not None:
            await try_place(box)
        return box

    @abstractmethod
    async def _create(self, spec: Spec) -> Sandbox:
        """Start one sandbox, and leave nothing behind on failure or cancellation. Each driver implements this."""

    async def holds(self, image: str) -> bool:
        """Say whether `create` could start from this image at once, without building or fetching it."""
        return False

    async def image_key(self, image: str) -> str:
        """Return a key that changes with the image's content where the substrate can tell; else the image's name.

        Raises as `create` does for an image it does not know.
        """
        return image

    async def image_bytes(self, image: str) -> int | None:
        """Size of the image's files, unpacked, as the store or the engine has it; None: it cannot tell."""
        return None

    async def remove_snapshot(self, key: str) -> None:
        """Give up the snapshot of that key, as `Snapshot.remove` does; no sandbox is made for it."""
        raise Unsupported("snapshot is not offered", driver=self.name, step="snapshot")

    async def _refuse_stages(self) -> Sandbox:
        what = "they are kept as snapshots, and it has none"
        if self.capabilities.snapshot:
            what = f"they are built by a pool: connect to 'warm:{self.name}'"
        raise Unsupported(f"stages are not offered: {what}", driver=self.name)

    @abstractmethod
    async def close(self) -> None:
        """Destroy what is left and release everything. Calling it twice is fine."""

    async def __aenter__(self) -> Self:
        """Enter a substrate that was awaited before: closed at the end of the block."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        await finish(self.close())


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """Facts that a driver knows of this machine without starting anything; `dutyfree doctor` begins with them."""

    available: bool
    reason: str
    """Why, or why not; one line."""
    enable: str | None = None
    """The exact command that would make it available."""
    version: str | None = None
    capabilities: Capabilities | None = None
    """What it would offer here; None if it cannot be told."""
    emulated: bool = False
    """True where a program emulates the processor: minutes for what takes others seconds."""


class Driver(Protocol):
    """Entry of the registry for one name: it can look at the machine, and connect.

    Entry points of the group ``dutyfree.substrates`` name an object of this shape.
    """

    name: str
    summary: str
    """One line for `doctor`."""
    costs: bool = False
    """Each sandbox is paid for, so nothing is started that was not asked for by name."""

    def declared(self) -> Sequence[Capabilities]:
        """List the capabilities where everything needed is in place: one for each dispatch mode, the default first."""

    def probe(self) -> Availability:
        """Look, quickly, without side effects."""

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Start using the substrate; `Unavailable` with the reason and command if it cannot be."""


def root_of(box: Sandbox) -> str | None:
    """Name whom `user=` must be for rights over every file, where an image or a spec says that actions run as another."""
    return "root" if box.capabilities.users else None


def strictest_network(offered: Capabilities) -> Network:
    """Choose for a caller who asks for no network in particular: none, where that is offered."""
    return "none" if "none" in offered.networks else min(offered.networks)


async def try_place(box: Sandbox) -> None:
    """Run an action where and as whom the spec says; if that cannot be, the sandbox is destroyed."""
    try:
        await box.run(["true"])
    except BaseException:
        await finish(box.destroy())
        raise


async def _destroy(box: Sandbox) -> None:
    await box.destroy()
