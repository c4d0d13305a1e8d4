"""Selection of what is taken over from the agent's sandbox: files whose paths are on an allow-list, as bytes.

Refuses links, devices and everything special; bytecode; names that steer tests, unless the list spells them out; and
whatever would stand in the place of a hidden file. The sandbox's answers are hostile input: what it does not answer, or
answers in a way that makes no sense, is refused with a reason too. Only the bounds on files, bytes and entries raise.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from dutyfree.core.contract import FileInfo, Sandbox, root_of
from dutyfree.core.errors import DriverError, Misuse
from dutyfree.core.spec import check_path
from dutyfree.reward.steering import CACHES, LOADED_INSTEAD, STEERING

_MOST_ENTRIES = 100_000
_MOST_REFUSALS = 1_000
_LONGEST_PATH = 4095
_MOST_DEPTH = 100
"""Names in one path: matching two `**` takes the square of it."""


class TooMuchError(Exception):
    """More files, bytes or entries than the caller expects."""


@dataclass(slots=True)
class Selection:
    """Entries that were found to take over."""

    files: dict[str, tuple[bytes, FileInfo]] = field(default_factory=dict)
    """Path to content, and what the sandbox said of the file."""
    links: set[str] = field(default_factory=set)
    """Paths on the list where a link or something special stands, which may be replaced."""
    refused: list[str] = field(default_factory=list)
    """Paths that are on the list and were not taken, with the reason."""
    matched: set[str] = field(default_factory=set)
    """Patterns that matched something, taken or not."""

    def refuse(self, path: str, reason: str) -> None:
        """Note a refusal; beyond a thousand, only that there are more."""
        if len(self.refused) < _MOST_REFUSALS:
            self.refused.append(shown(f"{path}: {reason}"))
        elif len(self.refused) == _MOST_REFUSALS:
            self.refused.append("and more")


def shown(text: str) -> str:
    """Text with names that an agent chose, fit to be printed: no control characters, no broken encoding."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


@dataclass(frozen=True, slots=True)
class _Pattern:
    text: str
    """Pattern as the caller wrote it."""
    fixed: str
    """The part before the first wildcard: a directory, or the whole path."""
    whole: re.Pattern[str]

    def lies_below(self, path: str) -> str | None:
        """The part of `path` that the pattern does not spell out; None if `path` is not at or below the fixed part."""
        root = self.fixed.rstrip("/")
        return path[len(root) :] if path == self.fixed or path.startswith(root + "/") else None


class AllowList:
    """Absolute patterns: `*` within one name, `**` over any number of names.

    A pattern without wildcards names a file, or a directory with everything below it.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        if isinstance(patterns, str | bytes) or not isinstance(patterns, Sequence):
            raise Misuse(f"must be a list of patterns, not {type(patterns).__name__}", field="allow")
        self.patterns = tuple(_pattern(text) for text in patterns)

    @property
    def texts(self) -> tuple[str, ...]:
        """The patterns as the caller wrote them."""
        return tuple(pattern.text for pattern in self.patterns)

    def matching(self, path: str) -> list[_Pattern]:
        """The patterns that match the whole path."""
        return [pattern for pattern in self.patterns if pattern.whole.fullmatch(path)]

    def allows(self, path: str) -> bool:
        """Some pattern matches the whole path."""
        return any(pattern.whole.fullmatch(path) for pattern in self.patterns)

    def steers(self, path: str) -> bool:
        """The path has a name that steers tests, and no pattern that matches it spells that name out."""
        return all(_steering(pattern.lies_below(path) or "") for pattern in self.matching(path))

    def opens(self, directory: str) -> bool:
        """Something below the directory may be taken."""
        for pattern in self.patterns:
            if pattern.fixed.startswith(directory.rstrip("/") + "/"):
                return True
            rest = pattern.lies_below(directory)
            if rest is not None and not _steering(rest):
                return True
        return False

    def tops(self) -> list[str]:
        """The directories and files to look at: what comes before the first wildcard, none inside another."""
        fixed = {pattern.fixed for pattern in self.patterns}
        return sorted(
            top for top in fixed if not any(top.startswith(other.rstrip("/") + "/") for other in fixed if other != top)
        )


def _pattern(text: str) -> _Pattern:
    check_path("allow", text)
    if ".." in text.split("/"):
        raise Misuse(f"{text!r} climbs", field="allow")
    clean = "/" + posixpath.normpath(text).lstrip("/")
    fixed = _fixed(clean)
    whole = _compiled(clean) if fixed != clean else _compiled(clean.rstrip("/") + "/**", or_itself=clean)
    return _Pattern(text, fixed, whole)


def _fixed(pattern: str) -> str:
    parts: list[str] = []
    for part in pattern.split("/")[1:]:
        if "*" in part or "?" in part:
            return "/" + "/".join(parts)
        parts.append(part)
    return pattern


@cache
def _compiled(pattern: str, or_itself: str = "") -> re.Pattern[str]:
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    text = "".join(words.get(part) or re.escape(part) for part in parts)
    return re.compile(f"{text}|{re.escape(or_itself)}" if or_itself else text, re.DOTALL)


@cache
def _any_of(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(_compiled(name).pattern for name in names))


def _steering(rest: str) -> bool:
    return any(_any_of(STEERING + CACHES).fullmatch(name) for name in rest.split("/"))


class HiddenPlaces:
    """The places of hidden files, and what may not stand around them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        self.directories = frozenset(posixpath.dirname(path) for path in self.paths)
        self._above = frozenset(above for path in self.paths for above in parents(path))
        self._shadows = frozenset(shadow for path in self.paths for shadow in _shadows(path)) - self.paths

    def reason(self, path: str, *, directory: bool = False) -> str | None:
        """Say why the file at `path` may not be taken over."""
        if path in self.paths or any(above in self.paths for above in parents(path)):
            return "is a hidden file's place"
        if path in self._above and not directory:
            return "is a directory of hidden files"
        if path in self._shadows:
            return "would be loaded instead of a hidden file"
        return None


def parents(path: str) -> list[str]:
    """The directories above a path, outermost first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]


def _shadows(path: str) -> list[str]:
    stem, suffix = posixpath.splitext(path)
    return [stem + other for loaded, instead in LOADED_INSTEAD if suffix in loaded for other in instead]


async def select(box: Sandbox, allow: AllowList, hidden: HiddenPlaces, *, max_files: int, max_bytes: int) -> Selection:
    """Read what the list allows. Raises `TooMuchError` if there is more than expected."""
    found, left = Selection(), max_bytes
    async for path, info in _walk(box, allow, hidden, found):
        matching = allow.matching(path)
        if not matching:
            continue
        found.matched.update(pattern.text for pattern in matching)
        reason = _reason(path, info, allow, hidden)
        if info.kind != "file" and not hidden.reason(path) and not allow.steers(path):
            found.links.add(path)
        if reason:
            found.refuse(path, reason)
            continue
        if len(found.files) >= max_files:
            raise TooMuchError(f"more than {max_files} files are allowed by the list")
        # The size was told by the sandbox; the read is bounded by what is left, whatever it answers.
        data = await _read(box, path, left + 1, found)
        if data is None:
            continue
        if len(data) > left:
            raise TooMuchError(f"more than {max_bytes} bytes are allowed by the list")
        left -= len(data)
        found.files[path] = data, info
    return found


async def _read(box: Sandbox, path: str, length: int, found: Selection) -> bytes | None:
    try:
        return await box.read(path, length=length, user=root_of(box))
    except (FileNotFoundError, NotADirectoryError):
        return None  # it went since it was listed
    except (OSError, Misuse, DriverError) as error:
        found.refuse(path, f"cannot be read: {error}")
        return None


def _reason(path: str, info: FileInfo, allow: AllowList, hidden: HiddenPlaces) -> str | None:
    if info.kind != "file":
        return "is neither a file nor a directory" if info.kind == "other" else f"is a {info.kind}"
    if _any_of(CACHES).fullmatch(path.rpartition("/")[2]):
        return "is bytecode"
    return hidden.reason(path) or ("steers how tests are run" if allow.steers(path) else None)


async def _walk(
    box: Sandbox, allow: AllowList, hidden: HiddenPlaces, found: Selection
) -> AsyncIterator[tuple[str, FileInfo]]:
    """Every path that is no directory, without following links."""
    waiting: list[str] = []
    for top in allow.tops():
        info = await _look(box, top, found)
        if info is not None and info.kind == "directory":
            waiting.append(top)
        elif info is not None:
            yield top, info
    left = _MOST_ENTRIES
    while waiting:
        path = waiting.pop()
        for entry in await _entries(box, path, left, found):
            left -= 1
            below = f"{path.rstrip('/')}/{entry.name}"
            if entry.kind != "directory":
                yield below, entry
            elif closed := _closed(below, allow, hidden):
                if allow.allows(below):
                    found.refuse(below, closed)
            else:
                waiting.append(below)


async def _look(box: Sandbox, path: str, found: Selection) -> FileInfo | None:
    try:
        return await box.stat(path, follow=False, user=root_of(box))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, Misuse, DriverError) as error:
        found.refuse(path, f"cannot be read: {error}")
        return None


async def _entries(box: Sandbox, path: str, left: int, found: Selection) -> list[FileInfo]:
    if left <= 0:
        raise TooMuchError(f"more than {_MOST_ENTRIES} entries lie below the list's patterns")
    try:
        entries = await box.list(path, limit=left, user=root_of(box))
    except Misuse:
        raise TooMuchError(f"more than {_MOST_ENTRIES} entries lie below the list's patterns") from None
    except (FileNotFoundError, NotADirectoryError):
        return []  # it went since it was listed
    except (OSError, DriverError) as error:
        found.refuse(path, f"cannot be listed: {error}")
        return []
    return [entry for entry in entries if _is_name(entry.name, path, found)]


def _is_name(name: str, directory: str, found: Selection) -> bool:
    """A name that a directory can hold, and that makes a path the sandbox can be asked for."""
    possible = bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name
    short = possible and len(f"{directory}/{name}".encode(errors="surrogateescape")) <= _LONGEST_PATH
    if not short:
        found.refuse(directory, "holds a name that cannot be asked for")
    return short


def _closed(directory: str, allow: AllowList, hidden: HiddenPlaces) -> str | None:
    """Say why nothing below a directory is read."""
    if directory.count("/") >= _MOST_DEPTH:
        return "lies too deep"
    if _any_of(CACHES).fullmatch(directory.rpartition("/")[2]):
        return "is bytecode"
    return hidden.reason(directory, directory=True) or (None if allow.opens(directory) else "steers how tests are run")
