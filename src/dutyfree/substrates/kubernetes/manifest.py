"""Manifest of a pod: limits, two profiles, and a main process that lives as long as its owner's stream."""

from __future__ import annotations

import math
from typing import Any

from dutyfree.core.spec import Spec
from dutyfree.driver.offer import HARDENED_CAPABILITIES, Profile
from dutyfree.driver.owner import OWNER_LABEL

CONTAINER = "sandbox"
LEASE_LABEL = "dutyfree.lease"
INSIDE = "/dev/.dutyfree"
"""Where ours is kept inside: /dev is the runtime's own and in memory, never the image's."""

CLAIM_S = 120
"""A pod that nobody holds ends by itself after this long: its owner died before it was ready."""

KEEPER = f"""
umask 077; mkdir {INSIDE} && mkfifo {INSIDE}/hold || exit 70
(sleep {CLAIM_S}; [ -e {INSIDE}/held ] || : >{INSIDE}/hold) &
cat {INSIDE}/hold >/dev/null
"""
"""The main process: reads a fifo until its last writer is gone, and reaps what commands leave."""

NOT_YET = 71
HOLD = f"[ -p {INSIDE}/hold ] || exit {NOT_YET}; exec 8>&2 9>{INSIDE}/hold && : >{INSIDE}/held || exit 70"
"""Begins the script of the one exec call that holds the pod: when it ends, for whatever reason, so does the pod. Exit code
`NOT_YET`: the main process has only just begun. Descriptor 8 keeps the error stream open whatever becomes of 2: containerd
closes a process's input as soon as one of its outputs has ended."""

_TMPFS_PATHS = {"tmp": "/tmp", "run": "/run", "var-tmp": "/var/tmp", "root": "/root", "home": "/home"}  # noqa: S108
_REQUEST_CPUS, _REQUEST_BYTES = 0.01, 16 << 20
_HARDENED_BYTES = 4 << 30


def pod_manifest(
    spec: Spec,
    *,
    name: str,
    image: str,
    owner: str,
    lease: dict[str, str],
    profile: Profile,
    runtime_class: str | None = None,
) -> dict[str, Any]:
    """The body of a create request. `lease` has the name and uid of the object that the pod is collected with."""
    hardened = profile == "hardened"
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "dnsPolicy": "Default",
        "containers": [_container(spec, image, hardened)],
    }
    if runtime_class is not None:
        pod["runtimeClassName"] = runtime_class
    if hardened:
        medium = {"medium": "Memory", "sizeLimit": "1Gi"}
        pod["volumes"] = [{"name": volume, "emptyDir": medium} for volume in _TMPFS_PATHS]
    if spec.lifetime_s is not None:
        # The node's own clock, for when ours is gone; ours comes first.
        pod["activeDeadlineSeconds"] = math.ceil(spec.lifetime_s) + CLAIM_S
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": owned_metadata(name, owner, lease),
        "spec": pod,
    }


def owned_metadata(name: str, owner: str, lease: dict[str, str]) -> dict[str, Any]:
    """Of anything of ours in the cluster: people and sweeps can tell whose it is, and it is collected with its Lease."""
    return {
        "name": name,
        "labels": {OWNER_LABEL: owner, LEASE_LABEL: lease["name"], "app.kubernetes.io/managed-by": "dutyfree"},
        "ownerReferences": [{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease}],
    }


def _container(spec: Spec, image: str, hardened: bool) -> dict[str, Any]:
    security: dict[str, Any] = {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    if hardened:
        security |= {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": list(HARDENED_CAPABILITIES)},
        }
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", KEEPER],
        "workingDir": "/",
        "resources": _resources(spec, hardened),
        "securityContext": security,
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in _TMPFS_PATHS.items()] if hardened else [],
    }


def _resources(spec: Spec, hardened: bool) -> dict[str, dict[str, str]]:
    """Limits are upper bounds; what is reserved of a node is little, so that sandboxes may share it."""
    cpus, memory_bytes = spec.limits.cpus, spec.limits.memory_bytes
    limits = {}
    if cpus is not None:
        limits["cpu"] = f"{math.ceil(cpus * 1000)}m"
    if memory_bytes is not None or hardened:
        limits["memory"] = str(memory_bytes or _HARDENED_BYTES)
    requests = {
        "cpu": f"{math.ceil(min(cpus or _REQUEST_CPUS, _REQUEST_CPUS) * 1000)}m",
        "memory": str(min(memory_bytes or _REQUEST_BYTES, _REQUEST_BYTES)),
    }
    return {"limits": limits, "requests": requests}
