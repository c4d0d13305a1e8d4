"""The `config.json` of an OCI bundle, from an image of our store, a spec and where the writes shall go.

The overlay over the image is a mount of the container itself, on `/`: it lives and dies in the container's own mount
namespace, and the machine never sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dutyfree.core.spec import Spec
from dutyfree.driver.agent import AGENT_INSIDE

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in (
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
        "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    )
)  # fmt: skip
"""What container engines give by default."""

REFUSED_CALLS = (
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "delete_module", "finit_module", "fsconfig", "fsmount",
    "fsopen", "fspick", "init_module", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "mount",
    "mount_setattr", "move_mount", "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open",
    "pivot_root", "quotactl", "reboot", "request_key", "setns", "settimeofday", "swapoff", "swapon", "syslog",
    "umount2", "unshare", "userfaultfd", "vhangup",
)  # fmt: skip
"""Ways to the kernel that nothing inside needs and that have led out of containers before."""

_MASKED = ("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware")  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_CPU_PERIOD_US = 100_000


def bundle_config(
    spec: Spec,
    *,
    name: str,
    rootfs: Path,
    layers: Sequence[Path],
    writes: Path | None,
    command: Sequence[str],
    agent: Path | None,
    env: Mapping[str, str],
    cwd: str = "/",
    keepers: int = 1,
) -> dict[str, Any]:
    """A bundle whose main process is `command`. `writes` holds `upper` and `work`; None: the runtime overlays by itself."""
    namespaces = ["pid", "ipc", "uts", "mount", "cgroup", *(["network"] if spec.network == "none" else [])]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(rootfs), "readonly": False},
        "hostname": "sandbox",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": [f"{key}={value}" for key, value in {"PATH": PATH, "LANG": "C.UTF-8", **env}.items()],
            "cwd": cwd,
            "noNewPrivileges": True,
            "capabilities": {kind: list(CAPABILITIES) for kind in ("bounding", "effective", "permitted")},
        },
        "mounts": list(_mounts(spec, layers, writes, agent)),
        "linux": {
            "cgroupsPath": f"/{name}",
            "resources": _resources(spec, keepers),
            "namespaces": [{"type": kind} for kind in namespaces],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64"],
                "syscalls": [{"names": list(REFUSED_CALLS), "action": "SCMP_ACT_ERRNO"}],
            },
        },
    }


def _mounts(spec: Spec, layers: Sequence[Path], writes: Path | None, agent: Path | None) -> Sequence[dict[str, Any]]:
    mounts = []
    if writes is not None:
        below = ":".join(map(str, layers))
        options = [f"lowerdir={below}", f"upperdir={writes}/upper", f"workdir={writes}/work"]
        mounts.append(_mount("/", "overlay", "overlay", *options))
    mounts += [
        _mount("/proc", "proc", "proc"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount(
            "/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"
        ),
        _mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),  # noqa: S108
        _mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        _mount("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "ro"),
    ]
    if agent is not None:
        mounts.append(_mount(AGENT_INSIDE, "bind", str(agent), "bind", "ro", "nosuid", "nodev"))
    if spec.network == "host":
        # The machine's network is of little use without its names.
        names = [path for path in ("/etc/resolv.conf", "/etc/hosts") if Path(path).is_file()]
        mounts += [_mount(path, "bind", str(Path(path).resolve()), "bind", "ro") for path in names]
    return mounts


def _mount(target: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": list(options)}


def _resources(spec: Spec, keepers: int) -> dict[str, Any]:
    limits = spec.limits
    wanted: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
    if limits.cpus is not None:
        wanted["cpu"] = {"quota": int(limits.cpus * _CPU_PERIOD_US), "period": _CPU_PERIOD_US}
    if limits.memory_bytes is not None:
        wanted["memory"] = {"limit": limits.memory_bytes, "swap": limits.memory_bytes}
    if limits.pids is not None:
        wanted["pids"] = {"limit": limits.pids + keepers}
    return wanted
