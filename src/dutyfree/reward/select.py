"""What is taken over from the agent's sandbox: files whose paths are on an allow-list, as bytes, and nothing else.

Refuses links, devices and everything special; names that change how tests are run, unless they are allowed literally; and
more files or bytes than the caller expects. The sandbox's answers are hostile input.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from dutyfree.core.contract import FileInfo, Sandbox
from dutyfree.core.errors import Misuse
from dutyfree.core.spec import check_path

STEERING = (
    "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "noxfile.py",
    "sitecustomize.py", "usercustomize.py", "*.pth", ".coveragerc", ".git", ".hg", "Makefile", "package.json", "jest.config.*",
    "vitest.config.*", ".mocharc*", ".npmrc", ".cargo", "build.rs",
)  # fmt: skip
"""Names that say how tests are found, started or judged: taken only if the allow-list names the very path."""

_MOST_DIRECTORIES = 20_000


@dataclass(slots=True)
class Selection:
    """What was found to take over."""

    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """Path to content and permission bits."""
    refused: list[str] = field(default_factory=list)
    """Allowed by pattern and not taken, with the reason."""


class AllowList:
    """Absolute patterns: `*` within one name, `**` over any number of names."""

    def __init__(self, patterns: Sequence[str]) -> None:
        if isinstance(patterns, str | bytes) or not isinstance(patterns, Sequence):
            raise Misuse(f"must be a list of patterns, not {type(patterns).__name__}", field="allow")
        for pattern in patterns:
            check_path("allow", pattern)
            if ".." in pattern.split("/"):
                raise Misuse(f"{pattern!r} climbs", field="allow")
        self.patterns = tuple(patterns)

    def allows(self, path: str) -> bool:
        """Some pattern matches the whole path."""
        return any(_compiled(pattern).fullmatch(path) for pattern in self.patterns)

    def steers(self, path: str) -> bool:
        """Some part of the path has a name that steers tests, and the path is not itself on the list."""
        names = path.split("/")[1:]
        return path not in self.patterns and any(_compiled(name).fullmatch(part) for name in STEERING for part in names)

    def tops(self) -> list[str]:
        """The directories and files to look at: what comes before the first wildcard, none inside another."""
        fixed = {_fixed(pattern) for pattern in self.patterns}
        return sorted(
            top for top in fixed if not any(top.startswith(other.rstrip("/") + "/") for other in fixed if other != top)
        )


def _fixed(pattern: str) -> str:
    parts: list[str] = []
    for part in pattern.split("/")[1:]:
        if "*" in part or "?" in part:
            return "/" + "/".join(parts)
        parts.append(part)
    return pattern


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join(words.get(part) or re.escape(part) for part in parts), re.DOTALL)


async def select(box: Sandbox, allow: AllowList, hidden: Iterable[str], *, max_files: int, max_bytes: int) -> Selection:
    """Read what the list allows. `hidden` paths are never taken. Raises `Misuse` if there is more than expected."""
    found, kept_back, left = Selection(), frozenset(hidden), max_bytes
    async for path, info in _walk(box, allow.tops()):
        if not allow.allows(path):
            continue
        reason = _reason(path, info, allow, kept_back)
        if reason:
            found.refused.append(f"{path}: {reason}")
            continue
        if len(found.files) >= max_files:
            raise Misuse(
                f"more than {max_files} files are allowed by the list; allow less, or raise max_files", field="allow"
            )
        # The size was told by the sandbox; the read is bounded by what is left, whatever it answers.
        data = await box.read(path, length=left + 1)
        if len(data) > left:
            raise Misuse(
                f"more than {max_bytes} bytes are allowed by the list; allow less, or raise max_bytes", field="allow"
            )
        left -= len(data)
        found.files[path] = data, info.mode & 0o777
    return found


def _reason(path: str, info: FileInfo, allow: AllowList, hidden: frozenset[str]) -> str | None:
    if info.kind != "file":
        return f"is a {info.kind}"
    if path in hidden:
        return "is a hidden file's place"
    return "steers how tests are run" if allow.steers(path) else None


async def _walk(box: Sandbox, tops: Sequence[str]) -> AsyncIterator[tuple[str, FileInfo]]:
    """Every path that is no directory, without following links."""
    waiting = list(tops)
    looked = 0
    first = frozenset(tops)
    while waiting:
        path = waiting.pop()
        looked += 1
        if looked > _MOST_DIRECTORIES:
            raise Misuse(f"more than {_MOST_DIRECTORIES} directories lie below the list's patterns", field="allow")
        if path in first:
            try:
                info = await box.stat(path, follow=False)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if info.kind != "directory":
                yield path, info
                continue
        for entry in await box.list(path):
            below = f"{path.rstrip('/')}/{entry.name}"
            if entry.kind == "directory":
                waiting.append(below)
            else:
                yield below, entry
