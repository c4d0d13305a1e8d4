"""Names of images, and the image that the archive at a path became.

    <root>/names/<name>             a symlink: to ../images/<key>, or to `host` (an alias of the host image)
    <root>/paths/<digest>           a path, a stamp by which a changed file is told, and a key

Names move by one rename each. Knows nothing of whether the image is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from dutyfree.core import fault
from dutyfree.image.root import StoreRoot

ALIAS = "host"
"""What a name's symlink says when it stands for the host image, whatever that is at the time."""


class Names:
    """The names below one root."""

    def __init__(self, root: StoreRoot) -> None:
        self._root = root

    def all(self) -> dict[str, str]:
        """Every name given, and the key (or `ALIAS`) it stands for."""
        with contextlib.suppress(FileNotFoundError):
            found = ((entry.name, self.named(entry.name)) for entry in os.scandir(self._root.path / "names"))
            return {name: key for name, key in sorted(found) if key is not None}
        return {}

    def named(self, name: str) -> str | None:
        """The key (or `ALIAS`) that a name stands for; None: no such name."""
        if "/" in name or name in ("", ".", ".."):
            return None
        try:
            return (self._root.path / "names" / name).readlink().name
        except FileNotFoundError:
            return None

    def give(self, name: str, key: str) -> None:
        """Let a name stand for an image from now on, whatever it stood for before."""
        self._root.prepare()
        with self._root.locked():
            self.point(name, key)

    def point(self, name: str, key: str) -> None:
        """The same, under the store's lock."""
        fresh = self._root.fresh()
        fresh.symlink_to(ALIAS if key == ALIAS else f"../images/{key}")
        fault.at("dutyfree.store.name", name)
        fresh.replace(self._root.path / "names" / name)

    def drop(self, name: str, only: str | None = None) -> None:
        """Forget a name, or only if it still stands for that key; what it stood for stays."""
        with self._root.locked():
            if only is None or self.named(name) == only:
                (self._root.path / "names" / name).unlink(missing_ok=True)

    def recall(self, path: Path) -> tuple[list[int], str] | None:
        """The stamp and the key that were noted for a path; None: nothing was, or it cannot be read any more."""
        try:
            noted = json.loads(self._noted(path).read_text())
            return list(noted["stamp"]), str(noted["key"])
        except (FileNotFoundError, ValueError, TypeError, LookupError):
            return None

    def note(self, path: Path, stamp: list[int], key: str) -> None:
        """Note which image the file at a path became, and a stamp by which a changed file is told."""
        self._root.prepare()
        fresh = self._root.fresh()
        with self._root.locked():
            fresh.write_text(json.dumps({"path": os.fspath(path), "stamp": stamp, "key": key}) + "\n")
            fresh.replace(self._noted(path))

    def _noted(self, path: Path) -> Path:
        return self._root.path / "paths" / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
