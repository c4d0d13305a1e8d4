"""Take-over: the allowed files of the judge's sandbox become those of the agent's.

Nothing runs in the judge's sandbox meanwhile, so what a look at it says stays true. Every file is made anew: no link of
the start state is followed, neither a symbolic one in any part of the path nor a second name of the same file.
"""

from __future__ import annotations

import errno
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress

from dutyfree.core.contract import FileInfo, Sandbox, root_of
from dutyfree.core.errors import Misuse
from dutyfree.reward.select import AllowList, Selection, parents

_AT_ONCE = 200
"""Paths in one command line."""


class NotTakenError(Exception):
    """The sandbox refused what the agent's files would make of it: too large, too many, too deep."""


class Ground:
    """The files of a fresh sandbox in which nothing runs yet."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self._real: set[str] = set()
        """Directories that are no links, and stay so."""

    async def check(self, allow: AllowList, hidden: Iterable[str]) -> None:
        """Raise `Misuse` if a path the caller spelled out leads through a link of the start state."""
        for pattern in allow.patterns:
            await self._check_above("allow", pattern.fixed)
            if await self._kind(pattern.fixed) == "symlink":
                with suppress(OSError):
                    if (await self.box.stat(pattern.fixed, user=root_of(self.box))).kind == "directory":
                        raise _link("allow", pattern.fixed)
        for path in hidden:
            await self._check_above("hidden", path)

    async def hide(self, hidden: Mapping[str, bytes]) -> None:
        """Write the hidden files, over whatever the start state has in their places."""
        for path, data in hidden.items():
            if await self._kind(path) is not None:
                await self.box.remove(path, recursive=True, user=root_of(self.box))
            await self.box.write(path, data, mode=0o444, user=root_of(self.box))

    async def take_over(self, start: Selection, solution: Selection) -> tuple[list[str], list[str]]:
        """Apply what differs; give the paths taken and removed. A file that is in no way possible is refused."""
        removed = sorted((start.files.keys() - solution.files.keys()) | (start.links - solution.links))
        changed = {path: kept for path, kept in sorted(solution.files.items()) if _differs(start.files.get(path), kept)}
        taken = []
        try:
            for path in removed:
                with suppress(FileNotFoundError):
                    await self.box.remove(path, user=root_of(self.box))
            for path, (data, info) in changed.items():
                reason = await self._put(path, data, info.mode & 0o777)
                if reason:
                    solution.refuse(path, reason)
                else:
                    taken.append(path)
        except OSError as error:
            if error.errno == errno.EROFS:
                raise  # no file could be taken over here, whatever it holds
            raise NotTakenError(str(error)) from error
        await self._give_back({path: changed[path][1] for path in taken})
        await self.clear_caches([*taken, *removed])
        return taken, [path for path in removed if path not in taken]

    async def clear_caches(self, paths: Iterable[str]) -> None:
        """Remove the bytecode beside Python files: Python may run it whatever the file says."""
        for directory in sorted({posixpath.dirname(path) for path in paths if path.endswith(".py")}):
            with suppress(FileNotFoundError, NotADirectoryError):
                await self.box.remove(f"{directory}/__pycache__", recursive=True, user=root_of(self.box))

    async def _put(self, path: str, data: bytes, mode: int) -> str | None:
        for above in parents(path):
            kind = "directory" if above in self._real else await self._kind(above)
            if kind is None:
                break
            if kind != "directory":
                return f"{above} is in its way, which the list does not allow to replace"
            self._real.add(above)
        kind = await self._kind(path)
        if kind == "directory" and not await self._is_empty(path):
            return "a directory is in its place, with files that the list does not allow to remove"
        if kind is not None:
            await self.box.remove(path, recursive=True, user=root_of(self.box))
        await self.box.write(path, data, mode=mode, user=root_of(self.box))
        return None

    async def _is_empty(self, directory: str) -> bool:
        """Say whether a directory holds nothing but directories and bytecode."""
        for entry in await self.box.list(directory, user=root_of(self.box)):
            if entry.name == "__pycache__":
                continue
            if entry.kind != "directory" or not await self._is_empty(f"{directory}/{entry.name}"):
                return False
        return True

    async def _give_back(self, infos: Mapping[str, FileInfo]) -> None:
        """Give files to the users they belonged to in the agent's sandbox, as far as the image's `chown` can."""
        if not infos:
            return
        made = await self.box.stat(next(iter(infos)), follow=False, user=root_of(self.box))
        owned: dict[str, list[str]] = defaultdict(list)
        for path, info in infos.items():
            if (info.uid, info.gid) != (made.uid, made.gid):
                owned[f"{info.uid}:{info.gid}"].append(path)
        user = "root" if self.box.spec.user else None
        for owner, paths in owned.items():
            for first in range(0, len(paths), _AT_ONCE):
                with suppress(Misuse):  # there is no root inside
                    await self.box.run(["chown", "-h", owner, *paths[first : first + _AT_ONCE]], user=user)

    async def _check_above(self, field: str, path: str) -> None:
        for above in parents(path):
            kind = await self._kind(above)
            if kind == "symlink":
                raise _link(field, above)
            if kind is None:
                return
            if kind != "directory" and field == "hidden":
                raise Misuse(f"{path} cannot be written: {above} is a file in the start state", field=field)

    async def _kind(self, path: str) -> str | None:
        try:
            return (await self.box.stat(path, follow=False, user=root_of(self.box))).kind
        except (FileNotFoundError, NotADirectoryError):
            return None


def _differs(start: tuple[bytes, FileInfo] | None, kept: tuple[bytes, FileInfo]) -> bool:
    return start is None or start[0] != kept[0] or (start[1].mode ^ kept[1].mode) & 0o777 != 0


def _link(field: str, path: str) -> Misuse:
    return Misuse(f"{path} is a symbolic link in the start state; name the directory it leads to", field=field)
