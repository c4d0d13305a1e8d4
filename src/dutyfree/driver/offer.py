"""Say what a driver offers, and check what a spec asks against it: `Unsupported` for the difference."""

from __future__ import annotations

from typing import Any, Literal

from dutyfree.core.contract import Capabilities, Dispatch, strictest_network
from dutyfree.core.egress import Egress
from dutyfree.core.errors import Unsupported
from dutyfree.core.spec import ISOLATION_ORDER, Network, Spec

__all__ = ["EXEC_NOTES", "HARDENED_CAPABILITIES", "Profile", "capabilities_for", "check_offered", "strictest_network"]

EXEC_NOTES = {
    "dispatch": "the command's own time is what lies above the cheapest exec call seen: an exec does not tell its start",
    "stream": "not offered over an exec call per command; use dispatch=agent",
    "terminal": "as stream",
    "shell": "as stream",
    "forward": "as stream",
    "process_tree": "processes are found by an environment variable: one that clears its environment survives a timeout",
}
"""What an exec call per action cannot promise; for capabilities."""

Profile = Literal["default", "hardened"]
"""How a container is held. hardened: hardly a capability, a read-only root, no new privileges, bounded by default."""

HARDENED_CAPABILITIES = ("SETGID", "SETUID", "KILL")
"""What the agent needs to run commands as another user and to end them; every other one is dropped."""

_BY_AGENT = ("stream", "terminal", "shell", "forward", "process_tree")


def capabilities_for(dispatch: Dispatch, **offered: Any) -> Capabilities:
    """Add to what a driver offers what the kit does for it: with the agent its abilities, with exec calls the notes."""
    for name in ("networks", "storages", "limits"):
        offered[name] = frozenset(offered.get(name, ()))
    if dispatch == "agent":
        offered = {**dict.fromkeys(_BY_AGENT, True), **offered}
    else:
        offered["notes"] = {**EXEC_NOTES, **offered.get("notes", {})}
    return Capabilities(dispatch=dispatch, **offered)


def check_offered(spec: Spec, network: Network | Egress, offered: Capabilities, *, driver: str) -> None:
    """Raise for the first thing that is asked and not offered, with the driver's own note on it."""
    for limit in spec.limits.given():
        if limit not in offered.limits:
            raise _refusal("limits", f"limits.{limit} is not enforced", offered, driver)
    if isinstance(network, Egress):
        if not offered.egress:
            raise _refusal("egress", "network Egress(...) is not offered", offered, driver)
    elif network not in offered.networks:
        have = " or ".join(sorted(offered.networks))
        raise _refusal("networks", f"network {network!r} is not offered, only {have}", offered, driver)
    if spec.storage not in offered.storages:
        raise _refusal("storages", f"storage {spec.storage!r} is not offered", offered, driver)
    if spec.user is not None and not offered.users:
        raise _refusal("users", "another user is not offered", offered, driver)
    order = ISOLATION_ORDER.index
    if spec.isolation is not None and order(spec.isolation) > order(offered.isolation):
        what = f"isolation {spec.isolation!r} is not offered, only {offered.isolation!r}"
        raise _refusal("isolation", what, offered, driver)


def _refusal(field: str, what: str, offered: Capabilities, driver: str) -> Unsupported:
    note = offered.notes.get(field)
    return Unsupported(f"{what}: {note}" if note else what, driver=driver)
