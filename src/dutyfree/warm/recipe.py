"""From a stage to its canonical recipe, and from recipes to content keys.

A recipe is everything that can change what a stage leaves behind, and nothing else: the same recipe after the same
parent is the same state. Local files count by their content, so making a recipe reads them: in a thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from dutyfree.core.errors import Misuse
from dutyfree.core.spec import Stage
from dutyfree.core.stage import Commands, Files, Repository

Recipe = dict[str, object]

_VERSION = 1
"""Raised when stages are run differently, so that what was built before is built again."""

_CHUNK_BYTES = 1 << 20


def recipe(stage: Stage) -> Recipe:
    """The canonical form of a stage. Blocks while local trees are read; `Misuse` if one is not there."""
    if isinstance(stage, Files):
        return {
            "kind": "files",
            "mode": stage.mode,
            "files": {path: _content(one) for path, one in stage.files.items()},
        }
    if isinstance(stage, Repository):
        return {
            "kind": "repository", "url": stage.url, "commit": stage.commit, "path": stage.path, "depth": stage.depth,
            "fetch": stage.fetch, "network": _text(stage.network),
        }  # fmt: skip
    if isinstance(stage, Commands):
        return {
            "kind": "commands", "commands": list(stage.commands), "env": dict(stage.env), "cwd": stage.cwd,
            "user": stage.user, "network": _text(stage.network),
        }  # fmt: skip
    raise Misuse(f"{type(stage).__name__} is not a stage that can be built", field="stages")


def keys(root: str, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """The content key of each stage: of its parent's key and its recipe. `root` is the image's own key."""
    found = []
    parent = root
    for one in recipes:
        text = json.dumps({"version": _VERSION, **one}, sort_keys=True, separators=(",", ":"))
        parent = hashlib.sha256(f"{parent}\0{text}".encode(errors="surrogateescape")).hexdigest()
        found.append(parent)
    return tuple(found)


def tree_digest(path: Path) -> str:
    """Changes with any name, mode, link or byte below a local path, which is a file or a directory."""
    digest = hashlib.sha256()
    try:
        _add(digest, os.fsencode(path), b"")
    except OSError as error:
        raise Misuse(f"{os.fspath(path)!r} cannot be read: {error.strerror}", field="files") from error
    return digest.hexdigest()


def _content(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return f"bytes {hashlib.sha256(content).hexdigest()}"
    return f"tree {tree_digest(content)}"


def _add(digest: hashlib._Hash, path: bytes, name: bytes) -> None:
    status = os.stat(path, follow_symlinks=bool(name) is False)
    digest.update(b"%s\0%o\0" % (name, status.st_mode))
    if stat.S_ISLNK(status.st_mode):
        digest.update(os.readlink(path) + b"\0")
    elif stat.S_ISREG(status.st_mode):
        digest.update(b"%d\0" % status.st_size)
        with open(path, "rb") as file:
            while data := file.read(_CHUNK_BYTES):
                digest.update(data)
    elif stat.S_ISDIR(status.st_mode):
        for entry in sorted(os.listdir(path)):
            _add(digest, os.path.join(path, entry), os.path.join(name, entry) if name else entry)


def _text(network: object) -> str | None:
    return None if network is None else str(network)
