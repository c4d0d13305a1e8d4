"""Reading a pod's status: on its way, ready, or why it will never be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dutyfree.core.errors import DriverError, Misuse
from dutyfree.substrates.kubernetes.client import DRIVER

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_NO_START = ("CreateContainerError", "CreateContainerConfigError", "RunContainerError", "CrashLoopBackOff")


def is_scheduled(pod: Mapping[str, Any]) -> bool:
    """A node was found for it."""
    return bool(pod["spec"].get("nodeName"))


def is_ready(pod: Mapping[str, Any]) -> bool:
    """The cluster says so."""
    return condition(pod, "Ready").get("status") == "True"


def is_unschedulable(pod: Mapping[str, Any]) -> str:
    """The scheduler's words if no node takes it, else nothing."""
    found = condition(pod, "PodScheduled")
    return str(found.get("message")) if found.get("reason") == "Unschedulable" else ""


def check_alive(pod: Mapping[str, Any]) -> None:
    """Raise what is wrong with a pod that will not become ready."""
    waiting = _state(pod, "waiting")
    reason, words = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _NO_IMAGE:
        image = pod["spec"]["containers"][0]["image"]
        raise Misuse(
            f"the node has no image {image!r} and cannot fetch it: {reason} {words}", field="image", driver=DRIVER
        )
    if reason in _NO_START:
        raise DriverError(f"the node cannot start it: {reason} {words}", driver=DRIVER, step="ready")
    if pod["status"].get("phase") in ("Failed", "Succeeded"):
        raise DriverError(f"it ended at once: {end_of(pod)}", driver=DRIVER, step="ready")


def end_of(pod: Mapping[str, Any]) -> str | None:
    """Reason of a pod's end by the cluster's account; None: it runs, or the reason is unknown."""
    status, ended = pod["status"], _state(pod, "terminated")
    words = [status.get("reason"), status.get("message"), ended.get("reason"), ended.get("message")]
    said = ", ".join(str(word) for word in words if word)
    return f"its pod ended: {said}" if said and (ended or status.get("phase") in ("Failed", "Succeeded")) else None


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Find one condition of a resource; empty: the cluster has not set it yet."""
    found = [one for one in resource.get("status", {}).get("conditions") or [] if one.get("type") == kind]
    return found[0] if found else {}


def _state(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    statuses = pod["status"].get("containerStatuses") or []
    return (statuses[0].get("state") or {}).get(kind) or {} if statuses else {}
