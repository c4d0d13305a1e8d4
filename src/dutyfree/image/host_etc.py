"""The part of the host's /etc that the `host` image shows: an allow-list, and generated files.

Left out on purpose although programs read them: shadow, ssh, gitconfig, pip.conf, npmrc, wgetrc, apt, environment,
profile.d and maven (tokens, proxies with passwords, private mirrors), machine-id and hosts (they identify the machine).
`profile` and `bash.bashrc` are generated, since administrators export credentials in theirs.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ALLOWED = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fedora-release",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-[0-9]*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "login.defs",
    "magic",
    "magic.mime",
    "mime.types",
    "networks",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "python3",
    "python3.[0-9]*",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "xattr.conf",
)
"""Patterns below /etc; a directory stands for all in it, except what `_NEVER` names, what not everybody may read, and private keys."""

_NEVER = re.compile(
    r"(?i).*(password|passwd|secret|token|credential).*|.*\.(key|p12|pfx)|\..*|private",
)
_PROGRAMS = ("/usr/", "/bin/", "/sbin/", "/lib")
_MAX_FILE_BYTES = 4 << 20
_MAX_DEPTH = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One file, directory or symlink of a skeleton."""

    path: str
    """Relative to the root."""
    kind: Literal["dir", "file", "link"]
    mode: int = 0o644
    data: bytes = b""
    """A file's content, or a link's target."""


def generated() -> Iterator[Entry]:
    """The files that every sandbox gets the same, whatever the host has."""
    files = {
        "bash.bashrc": "[ -z \"$PS1\" ] || PS1='\\u@\\h:\\w\\$ '\n",
        "environment": "",
        "fstab": "",
        "group": "root:x:0:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n",
        "hostname": "sandbox\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n",
        "machine-id": "",
        "nsswitch.conf": "".join(
            f"{name}: files\n"
            for name in ("passwd", "group", "shadow", "hosts", "networks", "protocols", "services", "ethers", "rpc")
        ),
        "passwd": (
            "root:x:0:0:root:/root:/bin/bash\n"
            "agent:x:1000:1000:agent:/home/agent:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "profile": (
            'if [ "$(id -u)" -eq 0 ]; then\n'
            "  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
            "else\n"
            "  PATH=/usr/local/bin:/usr/bin:/bin\n"
            "fi\n"
            "export PATH\n"
            '[ -z "$BASH" ] || . /etc/bash.bashrc\n'
        ),
        "resolv.conf": "",
    }
    for name, text in files.items():
        yield Entry(path=f"etc/{name}", kind="file", data=text.encode())
    yield Entry(path="etc/mtab", kind="link", data=b"/proc/self/mounts")


def allowed(root: Path) -> list[Entry]:
    """The host's own files that the allow-list names, with the directories they lie in."""
    found = {entry.path: entry for pattern in ALLOWED for entry in _matching(root, pattern)}
    return [entry for entry in found.values() if entry.kind != "link" or _is_public(entry, found)]


def _matching(root: Path, pattern: str) -> Iterator[Entry]:
    folder = posixpath.dirname(pattern)
    try:
        places = list(os.scandir(root / "etc" / folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for place in places:
        if fnmatch.fnmatchcase(place.name, posixpath.basename(pattern)):
            path = posixpath.join("etc", folder, place.name)
            yield from _parents(path)
            yield from _take(place, path, depth=0)


def _parents(path: str) -> Iterator[Entry]:
    parts = path.split("/")
    for count in range(2, len(parts)):
        yield Entry(path="/".join(parts[:count]), kind="dir", mode=0o755)


def _take(place: os.DirEntry[str], path: str, *, depth: int) -> Iterator[Entry]:
    if _NEVER.fullmatch(place.name) or depth > _MAX_DEPTH:
        return
    # scandir's entries, not pathlib: some eight hundred of them stand between a process and its first sandbox.
    if place.is_symlink():
        yield Entry(path=path, kind="link", data=os.fsencode(os.readlink(place.path)))
        return
    status = place.stat(follow_symlinks=False)
    if not status.st_mode & stat.S_IROTH:
        return
    if stat.S_ISDIR(status.st_mode):
        yield Entry(path=path, kind="dir", mode=0o755)
        for below in os.scandir(place.path):
            yield from _take(below, f"{path}/{below.name}", depth=depth + 1)
    elif stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_FILE_BYTES:
        content = Path(place.path).read_bytes()
        if b"PRIVATE KEY" not in content:
            yield Entry(path=path, kind="file", mode=0o755 if status.st_mode & 0o111 else 0o644, data=content)


def _is_public(link: Entry, found: Mapping[str, Entry]) -> bool:
    """Whether a link stays within what a sandbox sees anyway: even a name elsewhere may tell something."""
    target = posixpath.normpath(posixpath.join("/", posixpath.dirname(link.path), os.fsdecode(link.data)))
    return target.startswith(_PROGRAMS) or target[1:] in found
