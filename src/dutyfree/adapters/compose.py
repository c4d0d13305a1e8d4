"""A compose file as a start state, as far as one container goes. What it asks for beyond that is refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dutyfree.core.errors import Misuse, Unsupported

_IGNORED = frozenset(
    (
        "command", "container_name", "healthcheck", "init", "networks", "platform", "pull_policy", "restart",
        "stdin_open", "stop_grace_period", "tty",
    )
)  # fmt: skip
"""Of a service: what keeps a container alive, or says nothing of what runs in it."""
_TAKEN = frozenset(("cpus", "deploy", "environment", "image", "mem_limit", "network_mode", "user", "working_dir"))
_UNITS = {"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30}


def composed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Map the one service of a compose file to the settings of `start_of`.

    Without a `network_mode` it has the strictest network that the substrate offers.
    """
    services = config.get("services") or {}
    if len(services) != 1:
        raise Misuse(f"the file has {len(services)} services, and one container is what there is", field="compose")
    service: Mapping[str, Any] = next(iter(services.values()))
    known = _IGNORED | _TAKEN
    if beyond := sorted(name for name in service if name not in known and not name.startswith("x-")):
        what = f"{', '.join(beyond)} cannot be mapped to one sandbox; there are {', '.join(sorted(_TAKEN))}"
        raise Unsupported(f"compose: {what}")
    network = service.get("network_mode")
    if network not in (None, "none", "host"):
        raise Unsupported(f"compose: network_mode {network!r} is not offered; there are none and host")
    limits = ((service.get("deploy") or {}).get("resources") or {}).get("limits") or {}
    cpus, memory = service.get("cpus", limits.get("cpus")), service.get("mem_limit", limits.get("memory"))
    return {
        "image": service.get("image"),
        "cwd": service.get("working_dir"),
        "user": service.get("user"),
        "env": _variables(service.get("environment") or {}),
        "network": network,
        "cpus": None if cpus is None else float(cpus),
        "memory_bytes": None if memory is None else bytes_of(str(memory)),
    }


def _variables(given: Mapping[str, Any] | list[str]) -> dict[str, str]:
    pairs = given.items() if isinstance(given, Mapping) else (item.partition("=")[::2] for item in given)
    return {name: "" if value is None else str(value) for name, value in pairs}


def bytes_of(text: str) -> int:
    """Read a size as compose and Docker write it: `512m`, `2g`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if not found or found[2] not in _UNITS:
        raise Misuse(f"{text!r} is no size such as 512m", field="memory")
    return int(float(found[1]) * (1 << _UNITS[found[2]]))
