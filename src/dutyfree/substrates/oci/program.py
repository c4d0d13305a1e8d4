"""Finding a runtime program, and what its users share: needs, options, capabilities."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from dutyfree.core.checkout import make
from dutyfree.core.contract import Capabilities, Dispatch
from dutyfree.core.spec import Isolation
from dutyfree.substrates.api.sandbox import API_NOTES

_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = {
    "runc": "apt-get install -y runc",
    "runsc": "install runsc as https://gvisor.dev/docs/user_guide/install says",
}


def enable(name: str) -> str:
    """The command that provides a runtime program."""
    return make("substrates", _PACKAGES.get(name))


def find_program(name: str) -> str | None:
    """On PATH, or where systems keep what root runs."""
    return shutil.which(name) or shutil.which(name, path=_PLACES)


def version_of(program: str) -> str:
    """The first line of what it says of itself."""
    found = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return found.stdout.partition("\n")[0].strip()


def obstacle(name: str) -> str | None:
    """Reason why the program cannot be used here; None: it can."""
    if find_program(name) is None:
        return f"{name} is not installed"
    if os.geteuid() != 0:
        return f"{name} without an engine needs root here"
    return None


def runtime_capabilities(
    dispatch: Dispatch, *, isolation: Isolation, limits: frozenset[str], notes: Mapping[str, str]
) -> Capabilities:
    """Capabilities of a bundle in a dispatch mode."""
    agent = dispatch == "agent"
    return Capabilities(
        isolation=isolation,
        dispatch=dispatch,
        limits=limits,
        networks=frozenset({"none", "host"}),
        storages=frozenset({"memory", "disk"}),
        users=True,
        stream=agent,
        terminal=agent,
        shell=agent,
        forward=agent,
        process_tree=agent,
        reset=True,
        notes=dict(notes) if agent else {**notes, **API_NOTES},
    )
