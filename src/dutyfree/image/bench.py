"""Builds `bench`: the rootfs that benchmarks share, so that substrates are compared on the same files.

Debian (or what this machine's own apt sources name) in its smallest form, with Python, git, pytest and what the attrs
test suite needs. Made by mmdebstrap, else debootstrap; where neither is there, `bench` becomes another name of the host
image, and says so. What was built by the same recipe is not built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dutyfree.core.errors import DriverError, Unavailable
from dutyfree.image.apt import Sources, proxies, sources
from dutyfree.image.catalogue import release
from dutyfree.image.host import AGENT_UID
from dutyfree.image.intake import About, import_archive, import_directory
from dutyfree.image.names import ALIAS
from dutyfree.image.store import Manifest, Store

Tool = Literal["mmdebstrap", "debootstrap", "host"]
Progress = Callable[[str], None]

NAME = "bench"
PACKAGES = (
    "ca-certificates",
    "git",
    "make",
    "patch",
    "procps",
    "python3",
    "python3-cloudpickle",
    "python3-hypothesis",
    "python3-pip",
    "python3-pytest",
    "python3-pytest-xdist",
    "python3-venv",
    "python3-zope.interface",
)
INSTALL = "apt-get install -y mmdebstrap"

_FORMAT = 1
_EPOCH = 1577836800
_UNNEEDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
# Run with the new root as $1. Nothing in its /tmp may go: mmdebstrap keeps its apt configuration there, and without
# that its own cleaning empties *this machine's* package lists. The sources are emptied since a mirror's address may be private.
_TIDY = " && ".join(
    (
        f'chroot "$1" useradd --create-home --uid {AGENT_UID} --shell /bin/bash agent',
        'rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/info/* "$1"/usr/share/locale/*',
        'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap',
        'rm -f "$1"/etc/apt/sources.list.d/*',
        ': > "$1"/etc/apt/sources.list',
        ': > "$1"/etc/resolv.conf',
        ': > "$1"/etc/machine-id',
        'echo sandbox > "$1"/etc/hostname',
        'echo "127.0.0.1 localhost sandbox" > "$1"/etc/hosts',
        'echo "::1 localhost" >> "$1"/etc/hosts',
        # Told a fixed time, Python writes bytecode that reads and hashes its source at each import: a quarter more for each start.
        f'find "$1"/usr/lib/python3* -name "*.py" -newermt @{_EPOCH} -exec touch --date=@{_EPOCH} {{}} +',
        """chroot "$1" sh -c 'python3 -m compileall -q -f --invalidation-mode timestamp /usr/lib/python3*'""",
    )
)
# mmdebstrap does this itself.
_CLEAN = 'rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/log/*.log'
# A builder runs as root; should it ever lose its own configuration, this machine's package state stays as it is.
_GUARDED = (
    "for d in /var/lib/apt /var/cache/apt /var/lib/dpkg; do"
    ' [ ! -d "$d" ] || { mount --bind "$d" "$d" && mount -o remount,bind,ro "$d"; } || exit 1; done; exec "$@"'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """Result of building `bench`."""

    tool: Tool
    manifest: Manifest | None
    """None: it is the host image."""
    cached: bool
    """It was there already, by the same recipe."""
    notes: tuple[str, ...] = ()


def build(store: Store, *, progress: Progress, force: bool = False, tool: Tool | None = None) -> Built:
    """Make `bench`, or find it made. Blocks for a minute or so.

    Raises Unavailable when the tool asked for is not here, DriverError with its last words when it fails.
    """
    with store.exclusive(NAME):
        chosen = tool or choose()
        if chosen != "host":
            return _from_packages(store, chosen, progress=progress, force=force)
        own = _own_key(store)
        if own is not None and tool is None:
            # Nobody asked for less than what is there.
            return Built(tool="host", manifest=store.manifest(own), cached=True)
        return _from_host(store)


def choose() -> Tool:
    """The best tool of this machine."""
    if shutil.which("apt-get") and sources() is not None:
        if shutil.which("mmdebstrap"):
            return "mmdebstrap"
        if shutil.which("debootstrap") and os.geteuid() == 0:
            return "debootstrap"
    return "host"


def recipe(tool: Tool, origin: Sources) -> str:
    """The same for the same request; which versions come out is the archive's affair."""
    asked = [_FORMAT, tool, origin.suite, origin.architecture, origin.components, PACKAGES, _UNNEEDED, _TIDY]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _from_packages(store: Store, tool: Tool, *, progress: Progress, force: bool) -> Built:
    if shutil.which(tool) is None:
        raise Unavailable(f"{tool} is not installed", enable=f"apt-get install -y {tool}")
    origin = sources()
    if origin is None:
        raise Unavailable("this machine has no apt sources of its own release to build from")
    wanted = recipe(tool, origin)
    before = _own_key(store)
    manifest = store.images.whole(before) if before is not None else None
    if manifest is not None and manifest.recipe == wanted and not force:
        return Built(tool=tool, manifest=manifest, cached=True, notes=manifest.notes)
    about = About(kind="bench", source=f"{tool} {origin.suite} {origin.architecture}", recipe=wanted)
    manifest = (_mmdebstrap if tool == "mmdebstrap" else _debootstrap)(store, origin, about, progress)
    store.names.give(NAME, manifest.key)
    if before is not None:
        release(store, before)
    return Built(tool=tool, manifest=manifest, cached=False, notes=manifest.notes)


def _own_key(store: Store) -> str | None:
    """The key of the rootfs that `bench` stands for; None: there is none, or it is the host image."""
    key = store.named(NAME)
    return None if key == ALIAS else key


def _from_host(store: Store) -> Built:
    before, cached = _own_key(store), store.named(NAME) == ALIAS
    store.names.give(NAME, ALIAS)
    if before is not None:
        release(store, before)
    lacking = [name for name in ("python3", "git", "pytest") if not Path("/usr/bin", name).exists()]
    notes = [f"bench is this machine's own /usr; for a rootfs of its own: {INSTALL} && dutyfree image build bench"]
    if lacking:
        notes.append(f"this machine's /usr/bin lacks {', '.join(lacking)}")
    return Built(tool="host", manifest=None, cached=cached, notes=tuple(notes))


def _mmdebstrap(store: Store, origin: Sources, about: About, progress: Progress) -> Manifest:
    with store.images.building() as building:
        archive, listing = building.path / "bench.tar", building.path / "sources.list"
        listing.write_text("".join(f"{line}\n" for line in origin.lines))
        command = [
            "mmdebstrap",
            "--mode=root" if os.geteuid() == 0 else "--mode=unshare",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _UNNEEDED),
            *(f'--aptopt={key} "{value}"' for key, value in proxies().items()),
            f"--customize-hook={_TIDY}",
            origin.suite,
            os.fspath(archive),
            os.fspath(listing),
        ]
        _run(command, progress=progress, lock_fd=building.lock_fd)
        progress("unpacking")
        return import_archive(store, archive, about=about)


def _debootstrap(store: Store, origin: Sources, about: About, progress: Progress) -> Manifest:
    if os.geteuid() != 0:
        raise Unavailable("debootstrap needs root", enable="sudo dutyfree image build bench")
    with store.images.building() as building:
        root = building.path / "debootstrap"
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", origin.suite]
        _run([*command, os.fspath(root), origin.mirror], progress=progress, lock_fd=building.lock_fd)
        _run(["sh", "-c", f"{_TIDY} && {_CLEAN}", "tidy", os.fspath(root)], progress=progress, lock_fd=building.lock_fd)
        progress("unpacking")
        return import_directory(store, root, about=about)


def _run(command: Sequence[str], *, progress: Progress, lock_fd: int) -> None:
    """Run a builder to its end, passing on its lines.

    As root it gets a mount namespace of its own: what it mounts in the new root dies with it, and is never deleted
    through. It inherits the lock, so that should we die, nobody sweeps its directory while it still writes.
    """
    private = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _GUARDED, "sh"]
    last: deque[str] = deque(maxlen=8)
    # One fixed time for all files makes the same packages the same image.
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    with subprocess.Popen(
        [*(private if os.geteuid() == 0 else ()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        pass_fds=(lock_fd,),
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                last.append(line.rstrip())
                progress(line.rstrip())
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        words = "\n  ".join(last)
        raise DriverError(f"{command[0]} failed ({process.returncode}):\n  {words}", step="image")
