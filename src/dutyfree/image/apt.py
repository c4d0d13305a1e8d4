"""Package sources of this machine, as apt knows them. Asks apt; neither reads nor writes apt's files."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass

_COMPONENTS = ("main", "universe")
_PROXIES = ("Acquire::http::Proxy", "Acquire::https::Proxy")
_TARGETS = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ARCHITECTURE)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """The distribution's own archive: third parties' entries are left out."""

    suite: str
    architecture: str
    mirror: str
    """Of the suite itself."""
    lines: tuple[str, ...]
    """For a sources.list: the suite and its updates."""
    components: tuple[str, ...]


def sources() -> Sources | None:
    """The archive of the release this machine runs; None: it has none, or no apt."""
    suite = _codename()
    architecture = _output("dpkg", "--print-architecture").strip()
    # --no-release-info: machines without downloaded lists, such as containers, have sources too.
    listing = _output("apt-get", "indextargets", "--no-release-info", "--format", _TARGETS, "Identifier: Packages")
    return parse(listing, suite=suite, architecture=architecture) if suite else None


def parse(listing: str, *, suite: str, architecture: str) -> Sources | None:
    """Reduce the output of `apt-get indextargets` to the suite, its updates and its free components."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in listing.splitlines():
        uri, release, component, arch = (*line.split("|"), "", "", "")[:4]
        own = release == suite or release.startswith(f"{suite}-")
        if own and component in _COMPONENTS and arch == architecture:
            components = found.setdefault((uri, release), [])
            if component not in components:
                components.append(component)
    mirror = next((uri for uri, release in found if release == suite), None)
    if mirror is None:
        return None
    lines = tuple(f"deb {uri} {release} {' '.join(names)}" for (uri, release), names in found.items())
    names = tuple(sorted({name for names in found.values() for name in names}))
    return Sources(suite=suite, architecture=architecture, mirror=mirror, lines=lines, components=names)


def proxies() -> dict[str, str]:
    """The proxies that apt uses here; a builder does not read this machine's apt configuration itself."""
    dump = _output("apt-config", "dump", "--format", "%f %v%n", "Acquire")
    pairs = (line.partition(" ") for line in dump.splitlines())
    return {key: value for key, _, value in pairs if key in _PROXIES and value}


def _codename() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""
