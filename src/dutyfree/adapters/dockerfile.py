"""A Dockerfile as a start state: FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR and USER become an image and stages.

What says nothing of the files or of how commands start (CMD, LABEL, EXPOSE …) is left out. Anything else is refused with its
line: several FROMs, `--from`, `--mount`, URLs and archives in ADD, here-documents, another SHELL.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.core.spec import Network, Spec, Stage
from dutyfree.core.stage import Commands, Files

_IGNORED = frozenset(("CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME"))
_VARIABLE = re.compile(r"\\(\$)|\$(\w+)|\$\{(\w+)(?::([-+])([^}]*))?\}")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


def load(path: Path, *, context: Path | None = None, network: Network | None = None) -> Spec:
    """Read a Dockerfile. RUN has `network`; files are copied from `context`, by default the Dockerfile's directory."""
    build = _Build(path=path, context=(context or path.parent).resolve(), network=network)
    for number, line in _lines(path.read_text()):
        word, _, rest = line.partition(" ")
        build.instruction(number, word.upper(), rest.strip())
    if build.image is None:
        raise Misuse(f"{path} has no FROM", field="dockerfile")
    return Spec(image=build.image, env=build.env, cwd=build.cwd, user=build.user, stages=tuple(build.stages))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Instructions with their line numbers, without comments, continuations joined."""
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not held and not line.strip()):
            continue
        start = start if held else number
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        yield start, (held + line).strip()
        held = ""
    if held.strip():
        yield start, held.strip()


@dataclass(kw_only=True)
class _Build:
    path: Path
    context: Path
    network: Network | None
    image: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    stages: list[Stage] = field(default_factory=list)

    def instruction(self, number: int, word: str, rest: str) -> None:
        self.where = f"{self.path.name}:{number}"
        method = getattr(self, f"_{word.lower()}", None)
        if word in _IGNORED:
            return
        if method is None or word not in ("FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "USER"):
            raise self._refusal(f"{word} is not offered")
        if self.image is None and word not in ("FROM", "ARG"):
            raise Misuse(f"{self.where}: {word} comes before FROM", field="dockerfile")
        method(rest)

    def _from(self, rest: str) -> None:
        words = self._filled(rest).split()
        if self.image is not None:
            raise self._refusal("a second FROM is not offered: build in stages of one image")
        if len(words) == 3 and words[1].upper() == "AS":
            words = words[:1]
        if len(words) != 1:
            raise self._refusal(f"FROM {rest} is not offered")
        self.image = words[0]

    def _run(self, rest: str) -> None:
        if rest.startswith("--") or re.search(r"<<-?\s*['\"]?\w", rest):
            raise self._refusal("options and here-documents of RUN are not offered")
        command = self._json(rest) or ["/bin/sh", "-c", rest]
        env = {**self.arguments, **self.env}
        self._stage(
            Commands(commands=[command], env=env, cwd=self.cwd, user=self.user, network=self.network, name="RUN")
        )

    def _copy(self, rest: str) -> None:
        words = self._json(rest) or [self._filled(word) for word in shlex.split(rest)]
        if any(word.startswith("--") for word in words):
            raise self._refusal("options of COPY are not offered")
        if len(words) < 2:
            raise Misuse(f"{self.where}: COPY needs a source and a target", field="dockerfile")
        *sources, target = words
        found = [path for source in sources for path in self._matches(source)]
        inside = self._absolute(target)
        into = target.endswith("/") or target in (".", "./") or len(found) > 1
        files = {}
        for path in found:
            place = posixpath.join(inside, path.name) if into and not path.is_dir() else inside
            files[place] = path
        self._stage(Files(files=files, name="COPY"))

    def _add(self, rest: str) -> None:
        if any(word.startswith(("http:", "https:", "git@")) or word.endswith(_ARCHIVES) for word in rest.split()):
            raise self._refusal("ADD of URLs and archives is not offered: RUN fetches and unpacks them")
        self._copy(rest)

    def _env(self, rest: str) -> None:
        self.env.update(self._pairs(rest))

    def _arg(self, rest: str) -> None:
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            self.arguments[name] = self._filled(value)

    def _workdir(self, rest: str) -> None:
        self.cwd = self._absolute(self._filled(rest.strip("\"'")))
        self._stage(Commands(commands=[["mkdir", "-p", "--", self.cwd]], name="WORKDIR"))

    def _user(self, rest: str) -> None:
        self.user = self._filled(rest)

    def _pairs(self, rest: str) -> dict[str, str]:
        if "=" not in rest.split(maxsplit=1)[0]:
            name, _, value = rest.partition(" ")
            return {name: self._filled(value.strip())}
        pairs = (word.partition("=") for word in shlex.split(rest))
        return {name: self._filled(value) for name, _, value in pairs}

    def _stage(self, stage: Stage) -> None:
        self.stages.append(stage)

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.cwd or "/", path))

    def _matches(self, source: str) -> list[Path]:
        """Files of the context, and nothing outside it, whatever links say."""
        pattern = source.lstrip("/") or "."
        found = [self.context] if pattern in (".", "./") else sorted(self.context.glob(pattern.rstrip("/")))
        if not found:
            raise Misuse(f"{self.where}: {source} is not in {self.context}", field="dockerfile")
        if outside := [path for path in found if not path.resolve().is_relative_to(self.context)]:
            raise Misuse(f"{self.where}: {outside[0]} lies outside {self.context}", field="dockerfile")
        return found

    def _json(self, rest: str) -> list[str] | None:
        try:
            words = json.loads(rest) if rest.startswith("[") else None
        except ValueError:
            return None
        return [str(word) for word in words] if words else None

    def _filled(self, text: str) -> str:
        known = {**self.arguments, **self.env}

        def value(found: re.Match[str]) -> str:
            dollar, plain, braced, sign, other = found.groups()
            said = known.get(plain or braced or "", "")
            if dollar:
                return "$"
            if sign == "+":
                return str(other) if said else ""
            return said or (other if sign == "-" else "")

        return _VARIABLE.sub(value, text)

    def _refusal(self, what: str) -> Unsupported:
        return Unsupported(f"{self.where}: {what}; or build it as an image and name that")
