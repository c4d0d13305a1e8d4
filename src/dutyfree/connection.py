"""`connect` as editors and type checkers see it: each driver's options with their types, and what `warm:X` gives.

The work is done by `substrates.registry`, which takes any name: also those of drivers that are installed elsewhere.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from dutyfree.core.contract import Substrate
from dutyfree.core.pending import Pending

if TYPE_CHECKING:
    from dutyfree.warm.pool import Pool

Pooled = Literal[
    "warm:claim",
    "warm:daytona",
    "warm:docker",
    "warm:e2b",
    "warm:ec2",
    "warm:gvisor",
    "warm:host",
    "warm:kubernetes",
    "warm:microvm",
    "warm:modal",
    "warm:native",
    "warm:opensandbox",
    "warm:podman",
    "warm:runc",
    "warm:ssh",
    "warm:vm",
]
Option = str | float | os.PathLike[str]


class NativeOptions(TypedDict, total=False):
    """Options of `native`."""

    cgroup: Literal["auto", "v1", "v2", "none"]
    stock: int
    """Prepared sandboxes kept ready."""
    verify: Literal["quick", "full"]
    """How much of a sandbox is compared after a reset."""


class EngineOptions(TypedDict, total=False):
    """Options of `docker` and `podman`."""

    dispatch: Literal["agent", "api"]
    profile: Literal["default", "hardened"]
    runtime: str
    socket: Option
    """The engine's, where it is not found by itself."""
    user: str
    """Of `podman`: whose rootless containers."""


class WarmOptions(TypedDict, total=False):
    """Options of a pool. Those of the substrate beneath stand in the name: `warm:docker?dispatch=api`."""

    sandboxes: int
    """At most so many at once: leased, idle and on their way."""
    memory: str | int
    """At most so much reserved, such as 64G."""
    idle: int
    demand: bool
    creations: int
    refill: int
    queue: int
    wait_s: float
    stages: Option
    """Files that declare start states, separated by commas."""
    target: int
    """How many sandboxes of each start state to keep ready."""


@overload
def connect(name: Literal["native"], **options: Unpack[NativeOptions]) -> Pending[Substrate]: ...
@overload
def connect(name: Literal["docker", "podman"], **options: Unpack[EngineOptions]) -> Pending[Substrate]: ...
@overload
def connect(name: Pooled, **options: Unpack[WarmOptions]) -> Pending[Pool]: ...
@overload
def connect(name: str | None = None, **options: Option) -> Pending[Substrate]: ...
def connect(name: str | None = None, **options: Any) -> Pending[Any]:
    """A substrate by its name: await it, or enter it. Options may also be written in the name, after a `?`.

    Without a name: what `DUTYFREE_SUBSTRATE` or the config file says, else `native`. Numbers and paths mean what they
    would as text; True is "yes" and False is "no".

    Raises `Misuse` for a name nobody knows, `Unavailable` if the substrate cannot run here; both say what to do.
    """
    from dutyfree.substrates import registry  # noqa: PLC0415 - a name may be looked at without all drivers' names

    return registry.connect(name, **options)
