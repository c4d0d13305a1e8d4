"""Facts of the machine that native sandboxes depend on, as the spawner reports them, and the best case."""

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
        """Limits that are not enforced without cgroups, and the reason."""
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
