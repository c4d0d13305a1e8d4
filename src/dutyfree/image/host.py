"""The `host` image: the machine's own programs, and none of its secrets.

Programs and libraries are shown as they are on the host (`/usr`, and `/bin`, `/lib*` where they are directories of
their own), through a read-only overlay of each sandbox. All the rest is a small skeleton, made here: empty
directories, generated accounts, and the files of the host's /etc that `image_host_etc` allows. What is not listed
there does not appear.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.errors import Unavailable
from dutyfree.image.host_etc import Entry, allowed, generated
from dutyfree.image.store import Manifest, Store

AGENT_UID = 1000

_FORMAT = "host-2"
_TYPES = {"dir": stat.S_IFDIR, "link": stat.S_IFLNK, "file": stat.S_IFREG}
_PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_MOST, _TARGET_SIZE = 8, 64
"""Directories of the host that a sandbox can be shown, and bytes of a path inside: the spawner has room for no more."""
_DIRECTORIES = {
    "dev": 0o755,
    "etc": 0o755,
    "home": 0o755,
    "home/agent": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o555,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "sys": 0o555,
    "tmp": 0o1777,
    "usr": 0o755,
    "var": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Skeleton:
    """Content of a host image's layer, and the directories to mount over it."""

    entries: tuple[Entry, ...]
    binds: tuple[tuple[Path, str], ...]

    @property
    def key(self) -> str:
        """The same for the same content, on any machine."""
        digest = hashlib.sha256(_FORMAT.encode())
        for entry in self.entries:
            digest.update(f"\0{entry.kind}\0{entry.mode:o}\0{len(entry.data)}\0".encode())
            digest.update(os.fsencode(entry.path) + b"\0" + entry.data)
        for source, target in self.binds:
            digest.update(b"\0bind\0" + os.fsencode(source) + b"\0" + target.encode())
        return digest.hexdigest()


def plan(root: Path = Path("/")) -> Skeleton:
    """Look at the host below `root`, and decide. Writes nothing."""
    if not (root / "usr").is_dir():
        raise Unavailable(f"the host image needs {root / 'usr'}, which this machine lacks")
    entries = {path: Entry(path=path, kind="dir", mode=mode) for path, mode in _DIRECTORIES.items()}
    binds = [(root / "usr", "/usr")]
    for name in _PROGRAMS:
        place = root / name
        if place.is_symlink():
            entries[name] = Entry(path=name, kind="link", data=os.fsencode(place.readlink()))
        elif place.is_dir():
            entries[name] = Entry(path=name, kind="dir", mode=0o755)
            binds.append((place, f"/{name}"))
    binds += _mounted_below(binds)
    entries["var/run"] = Entry(path="var/run", kind="link", data=b"/run")
    entries["var/lock"] = Entry(path="var/lock", kind="link", data=b"/run/lock")
    entries |= {entry.path: entry for entry in allowed(root)}
    entries |= {entry.path: entry for entry in generated()}
    # Sorted: a directory comes before what is in it, and the key does not depend on the order of reading.
    return Skeleton(entries=tuple(entries[path] for path in sorted(entries)), binds=tuple(binds))


def _mounted_below(binds: list[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Directories that are filesystems of their own below those shown: an overlay does not show them by itself."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    # Of two mounts at one place the later hides the earlier; a directory comes before what is in it.
    points = sorted({Path(line.split()[4].replace(r"\040", " ")) for line in lines})
    found = [
        (point, f"{target}/{point.relative_to(source)}")
        for point in points
        for source, target in binds
        if source in point.parents and _open_to_all(point, source)
    ]
    return [(point, target) for point, target in found if len(target) < _TARGET_SIZE][: _MOST - len(binds)]


def _open_to_all(place: Path, source: Path) -> bool:
    """Whether everybody may enter the directory: what is below another cannot be reached inside either."""
    steps = [step for step in (place, *place.parents) if step.is_relative_to(source)]
    return all(os.path.isdir(step) and step.stat().st_mode & 0o001 for step in reversed(steps))


def write(skeleton: Skeleton, layer: Path) -> None:
    """Make the skeleton's files in an empty directory."""
    for entry in skeleton.entries:
        place = layer / entry.path
        if entry.kind == "link":
            place.symlink_to(os.fsdecode(entry.data))
            continue
        if entry.kind == "dir":
            place.mkdir()
        else:
            place.write_bytes(entry.data)
        # By chmod, since the umask would take from what mkdir and open are told.
        place.chmod(entry.mode)
    if os.geteuid() == 0:
        # An ordinary user's sandbox may know one uid only; everything is then its root's.
        os.chown(layer / "home/agent", AGENT_UID, AGENT_UID)


def is_whole(skeleton: Skeleton, layer: Path) -> bool:
    """Whether each entry is there with its type and size: a power cut may have emptied files."""
    base = os.fspath(layer)
    for entry in skeleton.entries:
        try:
            found = os.lstat(f"{base}/{entry.path}")
        except FileNotFoundError:
            return False
        if stat.S_IFMT(found.st_mode) != _TYPES[entry.kind] or (
            entry.kind != "dir" and found.st_size != len(entry.data)
        ):
            return False
    return True


def provide(store: Store, root: Path = Path("/")) -> tuple[Manifest, Skeleton]:
    """The host image's manifest and plan; builds its layer where the store lacks it. Blocks."""
    skeleton = plan(root)
    key = skeleton.key
    with store.exclusive(key):
        manifest = store.manifest(key)
        if manifest is not None and not is_whole(skeleton, store.images.layer_paths(manifest)[0]):
            store.images.retire(key)
            store.layers.discard(key)
            manifest = None
        if manifest is None:
            manifest = _build(store, skeleton, key, root)
    return manifest, skeleton


def _build(store: Store, skeleton: Skeleton, key: str, root: Path) -> Manifest:
    manifest = Manifest(
        key=key,
        kind="host",
        made_s=time.time(),
        size_bytes=sum(len(entry.data) for entry in skeleton.entries if entry.kind == "file"),
        source=os.fspath(root),
    )
    with store.images.building() as building:
        write(skeleton, building.rootfs)
        # Not forced to disk: `is_whole` notices, and this is on the way to somebody's first sandbox.
        manifest = store.publish(building, manifest, durable=False)
    for other in store.images.manifests():
        if other.kind == "host" and other.key != key:
            store.images.retire(other.key, only_if_idle=True)
    return manifest
