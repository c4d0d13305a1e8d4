"""Whether a sandbox is as its kind is at the start: what a reset must show before the sandbox is handed on.

The measure is a witness: another fresh sandbox of the same plan that nothing has ever run in. quick: the spawner's view
of both (processes, namespaces, mounts, limits, ipc objects, what was written) is compared line by line. full: besides,
every file of the root is read from outside and compared, metadata and content. Changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

from dutyfree.core.errors import DriverError
from dutyfree.substrates.native.plan import Plan
from dutyfree.substrates.native.spawner import Spawner

Depth = Literal["quick", "full"]

_VIEWS = ("proc", "sys", "dev")
"""Made anew for each sandbox, and no files of the image; the spawner's view says what is mounted there."""
_PIECE = 1 << 20
_NAMED = 3
"""How many differences an error names."""


@dataclass(frozen=True, slots=True)
class _Reference:
    view: tuple[str, ...]
    files: Mapping[str, str]


class Verifier:
    """Compares sandboxes with the witness of their plan. `witness` makes one and ends it."""

    def __init__(
        self, spawner: Spawner, depth: Depth, witness: Callable[[Plan], AbstractAsyncContextManager[int]]
    ) -> None:
        self.depth: Depth = depth
        self._spawner = spawner
        self._witness = witness
        self._references: dict[bytes, asyncio.Task[_Reference]] = {}
        """By what the spawner is sent: equal orders give equal sandboxes."""
        self._layers: dict[bytes, Sequence[int]] = {}

    async def learn(self, plan: Plan) -> None:
        """Look at a witness now, while the layers are as they are: what `check` compares with later."""
        await self._reference(plan)

    async def check(self, tag: int, plan: Plan) -> None:
        """`DriverError` naming the differences unless the sandbox is as the witness is."""
        expected = await self._reference(plan)
        found = await self._look(tag, plan)
        differences = [f"-{line}" for line in expected.view if line not in found.view]
        differences += [f"+{line}" for line in found.view if line not in expected.view]
        differences += [
            f"{path} ({found.files.get(path, 'absent')}, not {expected.files.get(path, 'absent')})"
            for path in sorted(expected.files.keys() | found.files.keys())
            if expected.files.get(path) != found.files.get(path)
        ]
        if differences:
            more = f" and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
            message = f"it is not as at the start: {'; '.join(differences[:_NAMED])}{more}"
            raise DriverError(message, driver="native", step="reset")

    async def close(self) -> None:
        """Wait for witnesses under way: nobody asks for them any more."""
        await asyncio.gather(*self._references.values(), return_exceptions=True)

    def forget(self, layer: int) -> None:
        """The layer was given up, and its number may come to mean another."""
        for packet in [packet for packet, layers in self._layers.items() if layer in layers]:
            del self._layers[packet]
            self._references.pop(packet, None)

    async def _reference(self, plan: Plan) -> _Reference:
        task = self._references.get(plan.packet)
        if task is None:
            task = self._references[plan.packet] = asyncio.ensure_future(self._learn(plan))
            self._layers[plan.packet] = plan.order.layers
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._references.get(plan.packet) is task and task.exception() is not None:
                del self._references[plan.packet]
            raise

    async def _learn(self, plan: Plan) -> _Reference:
        async with self._witness(plan) as tag:
            return await self._look(tag, plan)

    async def _look(self, tag: int, plan: Plan) -> _Reference:
        head, *lines = (await self._spawner.inspect(tag)).splitlines()
        _, pid, _, first_id = head.split()
        view = [line.replace(first_id, "0") for line in lines]  # each sandbox has ids of its own
        files: Mapping[str, str] = {}
        if self.depth == "full":
            skipped = {*_VIEWS, *(target.strip("/") for _, target in plan.image.binds)}
            files = await asyncio.to_thread(describe_files, int(pid), int(first_id), skipped)
        return _Reference(tuple(view), files)


def describe_files(pid: int, first_id: int, skipped: set[str]) -> dict[str, str]:
    """Every file below the root of a process, by path: kind and mode, owner, size, time, attributes, content.

    Blocks. Follows no link and opens nothing but regular files. `skipped` are directories that are not looked into.
    """
    found: dict[str, str] = {}
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    try:
        found["/"] = _describe(root, ".", first_id)
        for place, names, others, parent in os.fwalk(".", dir_fd=root, follow_symlinks=False):
            inside = place[2:] + "/" if place != "." else ""
            for name in (*names, *others):
                if inside + name in skipped:
                    found[f"/{inside}{name}"] = "mounted"
                else:
                    found[f"/{inside}{name}"] = _describe(parent, name, first_id)
            names[:] = [name for name in names if inside + name not in skipped]
    finally:
        os.close(root)
    return found


def _describe(parent: int, name: str, first_id: int) -> str:
    about = os.stat(name, dir_fd=parent, follow_symlinks=False)
    words = [f"{about.st_mode:o}", f"{about.st_uid - first_id}:{about.st_gid - first_id}", str(about.st_mtime_ns)]
    place = f"/proc/self/fd/{parent}/{name}"
    words += [
        f"{attribute}={os.getxattr(place, attribute, follow_symlinks=False).hex()}"
        for attribute in sorted(os.listxattr(place, follow_symlinks=False))
    ]
    if stat.S_ISLNK(about.st_mode):
        words.append(os.readlink(name, dir_fd=parent))
    elif stat.S_ISREG(about.st_mode):
        words += [str(about.st_size), _digest(parent, name)]
    return " ".join(words)


def _digest(parent: int, name: str) -> str:
    digest = hashlib.sha256()
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    try:
        while piece := os.read(fd, _PIECE):
            digest.update(piece)
    finally:
        os.close(fd)
    return digest.hexdigest()
