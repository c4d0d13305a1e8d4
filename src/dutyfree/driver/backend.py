"""`Backend` and `Body`: the two things that a driver writes. `Order`: what the kit asks of a body.

A `Backend` is everything that the sandboxes of one connection share. A `Body` is what stands behind one sandbox until
the sandbox is destroyed or reset. The kit knows the other sandboxes, the clocks, and who still needs a saved state.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dutyfree.core.contract import Capabilities, Sandbox
from dutyfree.core.egress import Egress
from dutyfree.core.errors import Unsupported
from dutyfree.core.spec import Network, Spec
from dutyfree.core.timeline import Timeline, now_ns
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink
from dutyfree.guest.transport import Transport

AgentStream = socket.socket | tuple[int, int] | Transport
"""A connected stream to our agent: a socket, (read descriptor, write descriptor), or a transport."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageDefaults:
    """The environment, directory and user that an image declares, for everything that the spec leaves open."""

    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None


@dataclass(eq=False, slots=True)
class State:
    """One read-only layer of content on top of a parent state. Sandboxes start from it, by its name or by a fork."""

    key: str
    """Key of the content, or a random one for a temporary state: the image is called `snapshot:<key>`."""
    content: object
    """The family's own handle: the number of a layer, the id of an image, a template."""
    parent: State | None = None
    """What it lies on; None: an image of the store or the engine, or all that a machine is."""
    image: ImageDefaults = field(default_factory=ImageDefaults)
    """What sandboxes that start from it inherit."""
    temporary: bool = False
    """True if the state is removed with the substrate."""
    uses: int = 1
    """Its name while that is valid, promised forks, sandboxes that stand on it, states that lie on it."""
    named: bool = True
    """One of the uses is its name."""


@dataclass(eq=False, slots=True)
class Order:
    """Request of the kit to a body. The kit makes one for every create and every reset."""

    id: str
    spec: Spec
    network: Network | Egress
    """The network that the spec asks for, or the strictest there is: never None."""
    state: State | None
    """What it starts from, where the backend keeps states."""
    lifetime_s: float | None
    """What is left of it; None: no end."""
    timeline: Timeline
    start_ns: int
    _marked_ns: int = 0

    def created(self) -> None:
        """Mark that the substrate has accepted the sandbox. The kit calls this."""
        self._marked_ns = now_ns()
        self.timeline.add("create", self.start_ns, self._marked_ns)

    def waited(self) -> None:
        """Mark the end of a wait for somebody else's control plane: a pod was scheduled, a claim was bound."""
        begin_ns, self._marked_ns = self._marked_ns, now_ns()
        self.timeline.add("orchestration", begin_ns, self._marked_ns)

    def ready(self) -> None:
        """Mark that the first action is possible. The kit calls this."""
        self.timeline.add("ready", self._marked_ns, now_ns())


class Body(ABC):
    """The real thing behind one sandbox, such as a container. `reset` replaces it by another body."""

    image: ImageDefaults = ImageDefaults()
    """What the image declares, where no state says it; known after `start`."""
    home: str | None = None
    """Where actions start if neither spec nor image say it; None: the substrate knows."""
    hello_timeout_s: float = 60.0
    """How long the agent may take to greet."""
    greets_first: bool = False
    """The agent itself came through its stream: nothing else may be sent before it has greeted."""
    overlaps: bool = True
    """Where the backend lets a reset start the new body before the old one is gone: this one does, too."""
    ended: str | None = None
    """Why the kit ended it; set by the kit, as the next."""
    idle_s: float | None = None

    @abstractmethod
    async def start(self) -> None:
        """Ask the substrate for it; return when the substrate has accepted. Do not wait for a boot.

        May be cancelled at any await: a request that cannot be taken back goes through `completed(…)`.
        """

    @abstractmethod
    async def remove(self) -> None:
        """Free everything, also after a `start` that failed half-way. Called exactly once."""

    async def agent(self) -> AgentStream:
        """Give the connected stream to our agent, once there is one. For the dispatch mode `agent`."""
        raise Unsupported("our agent is not offered")

    async def ready(self) -> None:
        """Wait until `execute` works. For the dispatch mode `api`."""

    async def execute(self, call: ExecCall, sink: Sink) -> ExecEnd:
        """Make one exec call. For the dispatch mode `api`.

        Raises `SandboxLost` if there is nothing to execute in any more. Cancelled, it lets go of the process; killing
        that is the kit's business.
        """
        raise Unsupported("exec calls are not offered")

    async def prepare(self, box: Sandbox) -> None:
        """Finish create and reset in a sandbox that works already: name files, a way out."""

    async def verify(self) -> None:
        """Raise after a reset unless the sandbox is as it was at its start."""

    async def cause(self) -> str | None:
        """Tell why it died, or raise the error that says it better; None: unknown."""
        return None

    async def reason(self) -> str | None:
        """Tell a caller whose call was cut off why. The kit's own: override `cause`."""
        why = self.ended or await self.cause()
        if why is None and self.idle_s is not None:
            return f"nothing was asked of it for {self.idle_s:g} s"
        return why


class StateStore(Protocol):
    """Verbs that a family of drivers writes to keep states. The kit's `StateKeeper` counts their users."""

    async def holds(self, image: str) -> bool:
        """Tell whether a sandbox could start from the image at once."""
        ...

    async def find(self, image: str) -> State:
        """Look up an image or a kept snapshot; `Misuse` if there is none."""
        ...

    async def save(self, body: Body, on: State, key: str | None, image: ImageDefaults) -> State:
        """Save the body's files as a state on top of `on`, which remembers `image`. Without a key it is temporary.

        Complete when it returns, and invisible before. Cancelled: nothing is left of it.
        """
        ...

    async def forget(self, state: State) -> None:
        """Take its name away: nothing new can start from it. Fine if it has none."""
        ...

    async def delete(self, state: State) -> None:
        """Delete the content: its name is gone and nobody uses it any more."""
        ...


class Backend(ABC):
    """State and verbs that all sandboxes of one connection share."""

    name: str
    version: str
    """Version of the thing itself, not of the driver."""
    capabilities: Capabilities
    states: StateStore | None = None
    """Store for drivers that save, fork, or pin what an image's name meant at creation; None: no states."""
    sandbox: type[Sandbox] | None = None
    """A kind of `DriverSandbox`; None: `AgentSandbox` or `ExecSandbox`, by `capabilities.dispatch`."""
    overlaps: bool = False
    """A reset may start the new body before the old one is gone."""
    keeps_time: bool = False
    """The substrate itself ends a sandbox at its lifetime."""

    stocked: int = 0
    """Prepared sandboxes that creations take from."""

    @abstractmethod
    def body(self, order: Order) -> Body:
        """Make the handle of a new body. Touches nothing yet."""

    def name_of(self, number: int) -> str:
        """Name the number-th sandbox of this connection: whose it is can be told by it."""
        return f"dutyfree-{self.name}-{os.getpid()}-{number}-{os.urandom(3).hex()}"

    async def image_key(self, image: str) -> str:
        """Name what changes when the image's content does; the name itself if that cannot be told."""
        return image

    async def image_bytes(self, image: str) -> int | None:
        """Give the size of the image's files, unpacked; None: it cannot be told."""
        return None

    async def sweep(self) -> Sequence[str]:
        """Remove what dead owners left, and name it. Called at connect, then every 30 s while sandboxes are created."""
        return ()

    async def close(self) -> None:
        """Release what is left, after the last body is gone."""
