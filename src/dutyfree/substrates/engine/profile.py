"""What a container is created with: limits, network and the two profiles, as the engine's API spells them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dutyfree.core.spec import Spec
from dutyfree.driver.owner import OWNER_LABEL
from dutyfree.substrates.boot import AGENT_INSIDE, KEEPERS

Profile = Literal["default", "hardened"]

HARDENED_CAPABILITIES = ("SETGID", "SETUID", "KILL")
"""What the agent needs to run commands as another user and to end them; every other one is dropped."""

_HARDENED_PIDS = 1024
_TMPFS_PATHS = ("/tmp", "/run", "/var/tmp", "/root", "/home")  # noqa: S108 - mount points inside
_TMPFS = "rw,exec,nosuid,nodev,size=1g"


def container_config(
    spec: Spec,
    *,
    image: str,
    command: Sequence[str],
    owner: str,
    agent: str | None,
    profile: Profile,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a create request. `agent` is the program on the engine's machine; `extra` goes into HostConfig."""
    return {
        "Image": image,
        "Entrypoint": list(command),
        "Cmd": [],
        "User": "0",
        "WorkingDir": "/",
        # As `native` has it. The engine's own is the container's id, and would tell one sandbox from the next after a reset.
        "Hostname": "sandbox" if spec.network == "none" else "",
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
        "Labels": {OWNER_LABEL: owner},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": False,
        "HostConfig": {
            "NetworkMode": spec.network,
            "AutoRemove": True,
            # The stream is our protocol or nothing: a log of it would grow with every byte.
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
            "Binds": [f"{agent}:{AGENT_INSIDE}:ro"] if agent else [],
            **_limits(spec, keepers=1 if agent else KEEPERS),
            **(_hardened(spec) if profile == "hardened" else {}),
            **extra,
        },
    }


def _limits(spec: Spec, *, keepers: int) -> dict[str, Any]:
    limits, wanted = spec.limits, {}
    if limits.cpus is not None:
        wanted["NanoCpus"] = int(limits.cpus * 1e9)
    if limits.memory_bytes is not None:
        # The same for both: otherwise the engine adds as much swap again.
        wanted["Memory"] = wanted["MemorySwap"] = limits.memory_bytes
    if limits.pids is not None:
        wanted["PidsLimit"] = limits.pids + keepers
    return wanted


def _hardened(spec: Spec) -> dict[str, Any]:
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory_bytes = spec.limits.memory_bytes or min(4 << 30, ram_bytes // 2)
    return {
        "CapDrop": ["ALL"],
        "CapAdd": list(HARDENED_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "Tmpfs": dict.fromkeys(_TMPFS_PATHS, _TMPFS),
        "IpcMode": "private",
        "PidsLimit": (spec.limits.pids or _HARDENED_PIDS) + KEEPERS,
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,
    }
