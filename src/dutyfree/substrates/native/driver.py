"""Driver `native`: its needs of the machine, and how to connect.

`probe` looks at facts of the kernel and the installation; whether a sandbox really starts is for `doctor` to try.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from dutyfree.core.checkout import make
from dutyfree.core.contract import Availability, Capabilities, Driver, Substrate
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.core.keyword import check_names
from dutyfree.substrates.native.machine import Best
from dutyfree.substrates.native.substrate import native_capabilities, open_native

DEFAULT_STOCK = 4
"""Blanks kept ready: each is one sleeping process with its namespaces."""

OLDEST_KERNEL = (5, 19)
"""Overlayfs on idmapped layers."""

_OPTIONS = ("cgroup", "stock", "verify")


def program(name: str) -> Path:
    """One of the native programs that came with the package."""
    return Path(__file__).parents[2] / "_native" / name


class NativeDriver(Driver):
    """The entry point's object."""

    name = "native"
    summary = "namespaces, overlayfs and our own agent: millisecond sandboxes on this kernel"

    def declared(self) -> list[Capabilities]:
        """For root on a machine with cgroups."""
        return [native_capabilities(Best())]

    def probe(self) -> Availability:
        """Look for what must be there."""
        for reason, enable in _missing():
            return Availability(available=False, reason=reason, enable=enable, version=_version())
        who = "root" if os.geteuid() == 0 else "an ordinary user: no cgroup limits, one id"
        return Availability(available=True, reason=f"kernel {platform.release()}, as {who}", version=_version())

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Start a spawner. Options: `cgroup` (auto, v1, v2, none), `stock` (blanks kept ready), `verify` (quick, full)."""
        check_names(options, _OPTIONS, driver="native")
        for reason, enable in _missing():
            raise Unavailable(reason, enable=enable, driver="native")
        stock = options.get("stock", str(DEFAULT_STOCK))
        if not stock.isdecimal():
            raise Misuse(f"must be a whole number, not {stock!r}", field="stock", driver="native")
        return await open_native(
            program("dutyfree-spawner"),
            cgroup=options.get("cgroup", "auto"),
            stock=int(stock),
            version=_version(),
            verify=options.get("verify", "quick"),
        )


driver = NativeDriver()


def _version() -> str:
    return f"linux {platform.release()}"


def _missing() -> list[tuple[str, str | None]]:
    """Find the obstacles on this machine, each with the command that removes it."""
    found: list[tuple[str, str | None]] = []
    if platform.system() != "Linux":
        return [(f"needs Linux, not {platform.system()}", None)]
    kernel = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if kernel < OLDEST_KERNEL:
        found.append((f"needs Linux {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]}, this is {platform.release()}", None))
    if not program("dutyfree-spawner").exists():
        found.append(("the native programs are not built", make("setup", "pip install --force-reinstall dutyfree")))
    switches = (
        ("/proc/sys/user/max_user_namespaces", "sysctl -w user.max_user_namespaces=15000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "sysctl -w kernel.unprivileged_userns_clone=1"),
    )
    for path, enable in switches:
        if _reads(path) == "0" and (os.geteuid() != 0 or path.startswith("/proc/sys/user")):
            found.append((f"user namespaces are switched off ({path} is 0)", enable))
    if os.geteuid() != 0 and _reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        enable = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        found.append(("AppArmor forbids user namespaces to ordinary users", enable))
    if "\toverlay" not in (_reads("/proc/filesystems") or "\toverlay"):
        found.append(("the kernel has no overlayfs", "modprobe overlay"))
    return found


def _reads(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
