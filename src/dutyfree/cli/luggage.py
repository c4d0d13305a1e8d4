"""`--upload` and `--download` of `dutyfree run`: files in before the command, and out after it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.contract import Sandbox
from dutyfree.core.errors import Misuse

WORK = "/work"
"""Where an upload goes, and the command starts, unless the caller says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Luggage:
    """Files to copy into a sandbox and out of it."""

    uploads: tuple[tuple[Path, str], ...]
    downloads: tuple[tuple[str, Path], ...]
    cwd: str | None
    """Where the command starts: in the first uploaded directory."""

    async def pack(self, box: Sandbox) -> None:
        """Copy everything in."""
        for local, remote in self.uploads:
            if box.capabilities.isolation == "none" and remote in (WORK, f"{WORK}/{local.name}"):
                raise Misuse(f"{remote} would be this machine's own; say where, as in DIR:PATH", field="--upload")
            await box.mkdir(os.path.dirname(remote))
            await box.upload(local, remote)

    async def unpack(self, box: Sandbox) -> None:
        """Copy everything out."""
        for remote, local in self.downloads:
            try:
                await box.download(remote, local)
            except FileNotFoundError as error:
                raise Misuse(f"there is no {remote} in the sandbox", field="--download") from error


def parse(uploads: list[str], downloads: list[str]) -> Luggage:
    """Parse the options; `Misuse` for what cannot be copied, before anything is started."""
    going_in = tuple(_upload(text) for text in uploads)
    places = [remote for _, remote in going_in]
    if len(set(places)) < len(places):
        raise Misuse(f"several go to {max(places, key=places.count)}; say where, as in DIR:PATH", field="--upload")
    cwd = next((remote if local.is_dir() else os.path.dirname(remote) for local, remote in going_in), None)
    return Luggage(uploads=going_in, downloads=tuple(_download(text) for text in downloads), cwd=cwd)


def _upload(text: str) -> tuple[Path, str]:
    name, colon, remote = text.rpartition(":") if ":/" in text else (text, "", "")
    local = Path(name).absolute()
    if not local.exists():
        raise Misuse(f"there is nothing at {local}", field="--upload")
    if colon:
        return local, os.path.normpath(remote)
    return local, WORK if local.is_dir() else f"{WORK}/{local.name}"


def _download(text: str) -> tuple[str, Path]:
    remote, _, name = text.partition(":")
    if not remote.startswith("/"):
        remote = f"{WORK}/{remote}"
    remote = os.path.normpath(remote)
    local = Path(name or os.path.basename(remote)).absolute()
    if local.exists() or local.is_symlink():
        raise Misuse(f"{local} is there already; say another place, as in {remote}:NAME", field="--download")
    return remote, local
