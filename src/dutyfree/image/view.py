"""A stack of layers as one tree, as overlayfs would show it, without mounting anything. Reads only; follows no symlink."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
"""The first is what a mount in a user namespace reads, the second what all others do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The visible entry at one place."""

    path: Path
    """In the uppermost layer that has it."""
    status: os.stat_result
    folders: tuple[Path, ...]
    """Of a directory: those that are merged here, uppermost first."""

    @property
    def is_folder(self) -> bool:
        """It may have entries below it."""
        return stat.S_ISDIR(self.status.st_mode)


class View:
    """Layers, uppermost first."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self.layers = tuple(layers)

    def entry(self, parts: Sequence[str]) -> Entry | None:
        """Find the entry at a place whose parents are not symlinks; None: there is none."""
        found = _root(self.layers) if self.layers else None
        for part in parts:
            if found is None or not found.is_folder:
                return None
            found = _below(found.folders, part)
        return found

    def walk(self) -> Iterator[tuple[str, Entry]]:
        """Every place below the root with its entry; a directory before what is in it, names sorted."""
        pending = [("", _root(self.layers))] if self.layers else []
        while pending:
            place, folder = pending.pop()
            for name in sorted({name for path in folder.folders for name in os.listdir(path)}):
                entry = _below(folder.folders, name)
                if entry is not None:
                    member = f"{place}/{name}".lstrip("/")
                    yield member, entry
                    if entry.is_folder:
                        pending.append((member, entry))


def is_whiteout(status: os.stat_result) -> bool:
    """It hides what is below it, and is itself not there."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(path: Path | str) -> bool:
    """A directory that hides what is in those below it."""
    for name in OPAQUE:
        try:
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
        except OSError:  # no such attribute, or none at all on this filesystem
            continue
    return False


def make_opaque(path: Path | str | int) -> None:
    """Let a directory hide what is in those below it, for either kind of mount."""
    for name in OPAQUE if os.geteuid() == 0 else OPAQUE[:1]:
        os.setxattr(path, name, b"y")


def _root(layers: tuple[Path, ...]) -> Entry:
    return Entry(path=layers[0], status=os.stat(layers[0]), folders=layers)


def _below(folders: tuple[Path, ...], name: str) -> Entry | None:
    merged: list[Path] = []
    first: tuple[Path, os.stat_result] | None = None
    for folder in folders:
        path = folder / name
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if is_whiteout(status):
            break
        is_folder = stat.S_ISDIR(status.st_mode)
        if first is None:
            first = path, status
        if not is_folder:
            break
        merged.append(path)
        if is_opaque(path):
            break
    return None if first is None else Entry(path=first[0], status=first[1], folders=tuple(merged))
