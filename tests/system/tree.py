"""Every file of an image as plain facts: what an engine exports, and what our store holds."""

import hashlib
import os
import stat
import tarfile
from pathlib import Path

from dutyfree.image.digest import attributes
from dutyfree.image.store import Manifest, Store
from dutyfree.image.view import View

MADE_BY_THE_ENGINE = {
    ".dockerenv",
    "dev/console",
    "dev/pts",
    "dev/shm",
    "etc/hostname",
    "etc/hosts",
    "etc/resolv.conf",
    "etc/mtab",
    "run",
}
"""`docker create` puts these into every container; none of them is in an image."""


def of_export(path: Path) -> dict[str, tuple]:
    found: dict[str, tuple] = {}
    with tarfile.open(path) as archive:
        for item in archive:
            name = item.name.strip("/").removeprefix("./")
            if not name or name in MADE_BY_THE_ENGINE:
                continue
            if item.islnk():
                found[name] = found[item.linkname.strip("/")]
                continue
            content = hashlib.sha256(archive.extractfile(item).read()).hexdigest() if item.isreg() else ""
            given = {
                k.removeprefix("SCHILY.xattr."): v.encode("utf-8", "surrogateescape")
                for k, v in item.pax_headers.items()
                if k.startswith("SCHILY.xattr.")
            }
            kind = {tarfile.DIRTYPE: "d", tarfile.SYMTYPE: "l", tarfile.FIFOTYPE: "p"}.get(item.type, "f")
            mode = 0o777 if item.issym() else item.mode & 0o7777
            found[name] = (
                kind,
                mode,
                item.uid,
                item.gid,
                item.size,
                item.linkname,
                tuple(sorted(given.items())),
                content,
            )
    return found


def of_store(store: Store, manifest: Manifest) -> dict[str, tuple]:
    found: dict[str, tuple] = {}
    for name, entry in View(store.images.layer_paths(manifest)).walk():
        if name in MADE_BY_THE_ENGINE:
            continue
        status = entry.status
        kind = {stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p"}.get(stat.S_IFMT(status.st_mode), "f")
        size = status.st_size if kind == "f" else 0
        link = os.readlink(entry.path) if kind == "l" else ""
        given = tuple(item for item in attributes(os.fspath(entry.path)) if ".overlay." not in item[0])
        content = hashlib.sha256(entry.path.read_bytes()).hexdigest() if kind == "f" else ""
        found[name] = (kind, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, size, link, given, content)
    return found
