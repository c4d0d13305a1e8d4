"""bubblewrap: the usual sandbox for one command, with the namespaces and read-only system a native sandbox has too."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks import subprocess_run
from benchmarks.interleave import Contender, Missing

_UNSHARE = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")


def contenders() -> list[Contender]:
    if shutil.which("bwrap") is None:
        raise Missing("bwrap is not installed", "apt-get install -y bubblewrap")
    direct, shell = [*command_line(), "true"], [*command_line(), "bash", "-c", "true"]
    settle_s = 0.01  # the kernel frees its namespaces after it is gone
    return [
        Contender(
            name="bwrap/true", group="start", label="`bwrap … true`", settle_s=settle_s,
            measure=lambda: subprocess_run.once(direct),
        ),
        Contender(
            name="bwrap/bash", group="start", label="`bwrap … bash -c true`", settle_s=settle_s, share=1 / 3,
            measure=lambda: subprocess_run.once(shell),
        ),
    ]  # fmt: skip


def command_line() -> list[str]:
    """Everything up to the command: the system read-only, the rest fresh, all namespaces its own."""
    line = ["bwrap", *_UNSHARE, "--die-with-parent"]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            line += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).is_dir():
            line += ["--ro-bind", path, path]
    line += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/alternatives"]
    line += ["/etc/alternatives", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/root"]
    return [*line, "--chdir", "/root", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
