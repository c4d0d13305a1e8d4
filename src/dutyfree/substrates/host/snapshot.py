"""Saved directories of `host` sandboxes: copies, since nothing beneath them has layers.

    <home>/host/<key>/              home and tmp, as they were; appears by one rename
    <home>/host/.<random>/          being copied; its mark says by whom, so that what a killed owner left is swept

Only the sandbox's own directory is in it: whatever lies elsewhere on the machine is shared by all sandboxes anyway.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import Misuse
from dutyfree.guest.thread import in_thread
from dutyfree.substrates.image.place import locate
from dutyfree.substrates.sweep import is_orphan

PARTS = ("home", "tmp")

_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_MARK = "owner"


class Saved:
    """The saved directories of one user."""

    def __init__(self, mark: str) -> None:
        self._root = locate(os.environ, os.geteuid()) / "host"
        self._mark = mark
        self._unnamed: set[str] = set()

    def directory(self, image: str) -> Path | None:
        """Where the image of that name lies; None: there is none."""
        key = image.removeprefix(SNAPSHOT_PREFIX)
        place = self._root / key
        return place if image != key and _KEY.fullmatch(key) and place.is_dir() else None

    async def save(self, source: Path, key: str | None) -> HostSnapshot:
        """Copy a sandbox's directory; one that is there already is kept."""
        name = key or f"unnamed-{secrets.token_hex(8)}"
        if not _KEY.fullmatch(name):
            raise Misuse(f"{name!r} is no key: lower-case letters, digits, and . _ - after the first", field="key")
        if key is None:
            self._unnamed.add(name)
        if not (self._root / name).is_dir():
            await in_thread(self._copy, source, name)
        return HostSnapshot(name, self._root / name)

    async def close(self) -> None:
        """Remove what was given no name."""
        for name in self._unnamed:
            await in_thread(shutil.rmtree, self._root / name, ignore_errors=True)
        self._unnamed.clear()

    async def sweep(self) -> None:
        """Remove copies whose maker was killed."""
        for place in self._root.glob(".*"):
            with suppress(OSError):
                if is_orphan(os.readlink(place / _MARK)):
                    await in_thread(shutil.rmtree, place, ignore_errors=True)

    def _copy(self, source: Path, name: str) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._root / f".{secrets.token_hex(8)}"
        fresh.mkdir()
        try:
            (fresh / _MARK).symlink_to(self._mark)
            for part in PARTS:
                copy_tree(source / part, fresh / part)
            (fresh / _MARK).unlink()
            with suppress(FileExistsError, OSError):  # another was first: the same recipe, so theirs will do
                fresh.rename(self._root / name)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


class HostSnapshot:
    """One saved directory."""

    def __init__(self, key: str, place: Path) -> None:
        self.key = key
        self._place = place

    @property
    def image(self) -> str:
        """What `Spec(image=…)` takes."""
        return f"{SNAPSHOT_PREFIX}{self.key}"

    async def remove(self) -> None:
        """Delete the copy; sandboxes have copies of their own."""
        await in_thread(_remove, self._place)


def copy_tree(source: Path, target: Path) -> None:
    """Files, links and directories; sockets and the like stay behind."""
    shutil.copytree(source, target, symlinks=True, ignore=_special, dirs_exist_ok=True)


def _special(place: str, names: list[str]) -> list[str]:
    return [
        name for name in names
        if not (os.path.islink(f"{place}/{name}") or os.path.isfile(f"{place}/{name}") or os.path.isdir(f"{place}/{name}"))
    ]  # fmt: skip


def _remove(place: Path) -> None:
    gone = place.with_name(f".{secrets.token_hex(8)}")
    with suppress(FileNotFoundError):
        place.rename(gone)
        shutil.rmtree(gone)
