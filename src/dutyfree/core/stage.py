"""The steps of a chain from an image to a start state: `Files`, `Repository`, `Commands`.

Values only: what is wrong with one is refused here, as `Misuse` naming the field; how they are run, keyed and kept is
`dutyfree.warm`'s. What changes the outcome of a step is part of its content key; names and deadlines are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dutyfree.core.errors import Misuse
from dutyfree.core.frozen import FrozenDict
from dutyfree.core.keyword import named_options
from dutyfree.core.spec import Network, Spec, Stage, check_env, check_path, check_text, check_timeout, check_user

DEFAULT_STAGE_TIMEOUT_S = 1800.0

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_OPTION = "-"


@named_options
@dataclass(frozen=True, kw_only=True, slots=True)
class Files(Stage):
    """Files put into the sandbox."""

    files: Mapping[str, bytes | Path]
    """Absolute path inside to the bytes it shall hold, or to a local file or tree, whose content counts. That is looked
    at once for each value: make a new one after the tree was changed."""
    mode: int = 0o644
    """Mode of files given as bytes; local files keep their own."""
    name: str = "files"
    """Name in logs and errors."""

    def __post_init__(self) -> None:
        check_text("name", self.name)
        if not isinstance(self.files, Mapping) or not self.files:
            raise Misuse("must map paths to bytes or local paths", field="files")
        for target, content in self.files.items():
            check_path("files", target)
            if not isinstance(content, bytes | Path):
                raise Misuse(f"{target!r} must be bytes or a pathlib.Path, not {type(content).__name__}", field="files")
        if isinstance(self.mode, bool) or not isinstance(self.mode, int) or not 0 <= self.mode <= 0o7777:
            raise Misuse(f"must be permission bits, not {self.mode!r}", field="mode")
        object.__setattr__(self, "files", FrozenDict({str(path): content for path, content in self.files.items()}))


@named_options
@dataclass(frozen=True, kw_only=True, slots=True)
class Repository(Stage):
    """A git repository at a commit, checked out detached."""

    url: str
    """What git clones from: a URL, or the path of a local repository."""
    commit: str
    """The whole id: a branch's name would mean something else tomorrow."""
    path: str = "/repo"
    """Where it goes, inside."""
    depth: int | None = None
    """How much history; None: all of it."""
    fetch: Literal["outside", "inside"] = "outside"
    """The git that clones. outside: this machine's; the sandbox needs neither network nor git · inside: the image's."""
    network: Network | None = None
    """Network of the sandbox it is built in; None: the machine's own to fetch inside, else the strictest there is."""
    timeout_s: float | None = DEFAULT_STAGE_TIMEOUT_S
    name: str = "repository"

    def __post_init__(self) -> None:
        check_text("name", self.name)
        object.__setattr__(self, "path", check_path("path", self.path))
        if check_text("url", self.url).startswith(_OPTION):
            raise Misuse(f"{self.url!r} would be taken for an option", field="url")
        if not isinstance(self.commit, str) or not _COMMIT.fullmatch(self.commit):
            raise Misuse(f"must be a whole commit id of 40 or 64 hex digits, not {self.commit!r}", field="commit")
        if self.depth is not None and (
            isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 1
        ):
            raise Misuse(f"must be a positive whole number, not {self.depth!r}", field="depth")
        if self.fetch not in ("outside", "inside"):
            raise Misuse(f"must be outside or inside, not {self.fetch!r}", field="fetch")
        _check_network(self.network)
        check_timeout("timeout_s", self.timeout_s)


@named_options
@dataclass(frozen=True, kw_only=True, slots=True)
class Commands(Stage):
    """Commands run one after the other; each must exit with 0."""

    commands: Sequence[str | Sequence[str]]
    """Commands as in `Sandbox.run`: a string is run by `bash -c`, a list directly."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    network: Network | None = None
    """Network of the sandbox it is built in, whatever later sandboxes get; None: the strictest there is."""
    timeout_s: float | None = DEFAULT_STAGE_TIMEOUT_S
    """Deadline of each command."""
    name: str = "commands"

    def __post_init__(self) -> None:
        check_text("name", self.name)
        if isinstance(self.commands, str | bytes) or not isinstance(self.commands, Sequence) or not self.commands:
            raise Misuse("must be a sequence of commands", field="commands")
        object.__setattr__(self, "commands", tuple(_check_command(one) for one in self.commands))
        object.__setattr__(self, "env", FrozenDict(check_env("env", self.env)))
        if self.cwd is not None:
            object.__setattr__(self, "cwd", check_path("cwd", self.cwd))
        if self.user is not None:
            object.__setattr__(self, "user", check_user("user", self.user))
        _check_network(self.network)
        check_timeout("timeout_s", self.timeout_s)


def _check_command(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return check_text("commands", value)
    if not isinstance(value, Sequence) or isinstance(value, bytes) or not value:
        raise Misuse(f"{value!r} is neither a string nor a list of words", field="commands")
    if any(not isinstance(word, str) or "\0" in word for word in value):
        raise Misuse(f"{value!r} holds a word that is no string without NUL", field="commands")
    return tuple(value)


def _check_network(value: Network | None) -> None:
    if value is not None:
        Spec(network=value)  # knows which there are
