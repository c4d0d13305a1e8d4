"""Start states written down: a `Spec` with its stages, from TOML or JSON.

    image = "bench"

    [[stage]]
    repository = "https://example.org/project.git"
    commit = "0123456789abcdef0123456789abcdef01234567"

    [[stage]]
    commands = ["pip install -r requirements.txt"]
    cwd = "/repo"
    network = "host"

A stage is known by its first key: `repository`, `commands`, `files` (path to text) or `copy` (path to a local file or
tree, relative to the declaration). Everything else has the names and meanings of the Python values.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse
from dutyfree.core.spec import Limits, Spec, Stage
from dutyfree.core.stage import Commands, Files, Repository

_SPEC = {"image", "network", "env", "cwd", "user", "lifetime_s", "idle_s", "isolation", "storage"}
_REPOSITORY = {"commit", "path", "depth", "fetch", "network", "timeout_s", "name"}
_COMMANDS = {"env", "cwd", "user", "network", "timeout_s", "name"}
_FILES = {"mode", "name"}


def load(path: Path | str) -> Spec:
    """The spec that a file declares, TOML unless it is called `.json`. `Misuse` names the file and the field."""
    place = Path(path)
    try:
        data = place.read_bytes()
    except OSError as error:
        raise Misuse(f"{place} cannot be read: {error.strerror}", field="stages") from error
    try:
        text = data.decode()
        content = json.loads(text) if place.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise Misuse(
            f"{place} is not {'JSON' if place.suffix == '.json' else 'TOML'}: {error}", field="stages"
        ) from error
    try:
        return parse(content, base=place.absolute().parent)
    except Misuse as error:
        raise Misuse(f"{place}: {error.message}", field=None) from error


def parse(content: object, *, base: Path) -> Spec:
    """Build the spec from parsed TOML or JSON; local paths are relative to `base`."""
    table = dict(_table("the declaration", content))
    stages = table.pop("stage", [])
    if not isinstance(stages, list):
        raise Misuse("must be a list: [[stage]]", field="stage")
    limits = Limits(**_known("limits", table.pop("limits", {}), set(Limits.__dataclass_fields__)))
    built = tuple(_stage(f"stage {number}", one, base) for number, one in enumerate(stages, 1))
    return Spec(**_known("the declaration", table, _SPEC), limits=limits, stages=built)


def _stage(where: str, content: object, base: Path) -> Stage:
    table = dict(_table(where, content))
    kinds = [kind for kind in ("repository", "commands", "files", "copy") if kind in table]
    if len(kinds) != 1 and set(kinds) != {"files", "copy"}:
        raise Misuse("must say one of repository, commands, files or copy", field=where)
    try:
        if "repository" in kinds:
            url = _url(table.pop("repository"), base)
            return Repository(url=url, **_known(where, table, _REPOSITORY))
        if "commands" in kinds:
            return Commands(commands=table.pop("commands"), **_known(where, table, _COMMANDS))
        files: dict[str, bytes | Path] = {}
        for path, text in _table("files", table.pop("files", {})).items():
            files[path] = _text(path, text).encode()
        for path, local in _table("copy", table.pop("copy", {})).items():
            files[path] = base / _text(path, local)
        return Files(files=files, **_known(where, table, _FILES))
    except Misuse as error:
        raise Misuse(error.message, field=where) from error
    except TypeError as error:  # something that the value needs was not said
        raise Misuse(str(error).partition(") ")[2], field=where) from error


def _url(value: object, base: Path) -> str:
    text = _text("repository", value)
    return str(base / text) if text.startswith((".", "~")) else text


def _table(where: str, content: object) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise Misuse(f"must be a table, not {type(content).__name__}", field=where)
    return content


def _known(where: str, table: object, names: set[str]) -> dict[str, Any]:
    found = dict(_table(where, table))
    for name in found:
        if name not in names:
            raise Misuse(f"{name!r} is not known here; there are {', '.join(sorted(names))}", field=where)
    return found


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise Misuse(f"must be a string, not {type(value).__name__}", field=where)
    return value
