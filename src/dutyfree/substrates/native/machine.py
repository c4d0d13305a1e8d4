"""What native sandboxes depend on, as the spawner reports it, and the best it can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Machine(Protocol):
    """The spawner's word on the machine it runs on."""

    @property
    def cgroup(self) -> str:
        """v1, v2 or none."""
        ...

    @property
    def lost(self) -> str:
        """What is not enforced without cgroups, and why."""
        ...

    @property
    def idmap(self) -> bool:
        """Layers can be mapped to ids of the sandbox's own: root."""
        ...


@dataclass(frozen=True, slots=True)
class Best:
    """Root on a machine with cgroups."""

    cgroup: str = "v2"
    lost: str = ""
    idmap: bool = True
