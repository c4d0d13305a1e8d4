"""Builds the native programs into the wheel, which then needs no compiler where it is installed.

Refuses to make a wheel without them. Editable installs are left alone: `make setup` puts the programs beside the sources.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAMS = ("dutyfree-agent", "dutyfree-spawner", "dutyfree-machine")


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """`make -C native`, then the programs become `dutyfree/_native/…` in a wheel for this kind of machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by the build backend before it collects files; `version` is "standard" or "editable"."""
        if version == "editable":
            return
        native = Path(self.root) / "native"
        if shutil.which("make") is None:
            raise RuntimeError("building dutyfree needs make and a C compiler: apt-get install -y make gcc libc6-dev")
        subprocess.run(["make", "-C", str(native)], check=True)
        for program in PROGRAMS:
            build_data["force_include"][str(native / "build" / program)] = f"dutyfree/_native/{program}"
        build_data["pure_python"] = False
        # The programs are static: any Linux of this architecture runs them, and no Python version matters.
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
