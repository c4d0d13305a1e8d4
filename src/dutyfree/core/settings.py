"""Settings of the user: `DUTYFREE_*` variables, and under them the config file, which is TOML.

    substrate = "docker"            # DUTYFREE_SUBSTRATE
    home = "/data/dutyfree"         # DUTYFREE_HOME
    store_bytes = "50G"             # DUTYFREE_STORE_BYTES

    [run]                           # defaults of one command's options, by their long names
    memory = "2G"

The file is `~/.config/dutyfree/config.toml`, or what `DUTYFREE_CONFIG` names (empty: no file).
A variable wins over it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dutyfree.core.errors import Misuse

PLACE = "DUTYFREE_CONFIG"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: a key at the top of the file, and a variable that wins over it."""

    key: str
    variable: str
    default: str
    meaning: str


SETTINGS = (
    Setting("substrate", "DUTYFREE_SUBSTRATE", "native", "where commands run sandboxes, unless `-s` says"),
    Setting(
        "home",
        "DUTYFREE_HOME",
        "/var/lib/dutyfree for root, else ~/.local/share/dutyfree",
        "where images and stages are kept; an absolute path",
    ),
    Setting("store_bytes", "DUTYFREE_STORE_BYTES", "none", "how much images may take, such as 50G"),
)

_known = {setting.key: setting for setting in SETTINGS}


def file_place(environ: Mapping[str, str]) -> Path | None:
    """The config file's path, or None. The file need not exist unless `DUTYFREE_CONFIG` names it."""
    if PLACE in environ:
        return Path(environ[PLACE]).absolute() if environ[PLACE] else None
    base = environ.get("XDG_CONFIG_HOME", "")
    if base.startswith("/"):
        return Path(base) / "dutyfree/config.toml"
    home = environ.get("HOME", "")
    return Path(home) / ".config/dutyfree/config.toml" if home.startswith("/") else None


def file_content(environ: Mapping[str, str]) -> dict[str, Any]:
    """The file's settings as text, and its tables of commands. `Misuse` names the file and the key."""
    place = file_place(environ)
    if place is None:
        return {}
    try:
        text = place.read_bytes().decode()
    except FileNotFoundError:
        if PLACE in environ:
            raise Misuse(f"there is no file {place}", field=PLACE) from None
        return {}
    except (OSError, ValueError) as error:
        raise Misuse(f"cannot be read: {error}", field=str(place)) from error
    return {key: _checked(place, key, value) for key, value in _parsed(place, text).items()}


def environment() -> Mapping[str, str]:
    """The process's environment, with what the config file says for variables that are not set."""
    given = {
        _known[key].variable: value for key, value in file_content(os.environ).items() if not isinstance(value, dict)
    }
    return {**given, **os.environ}


def default_substrate() -> str:
    """The substrate to use where none was named."""
    setting = _known["substrate"]
    return environment().get(setting.variable) or setting.default


def suggestion(name: str, known: list[str]) -> str:
    """`; did you mean X?`, or nothing."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _parsed(place: Path, text: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - few have a config file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misuse(f"is not TOML: {error}", field=str(place)) from error


def _checked(place: Path, key: str, value: object) -> object:
    if isinstance(value, dict):
        return value  # a command's: the command line knows its options
    if key not in _known:
        hint = suggestion(key, list(_known)) or f"; there are {', '.join(_known)}, and a table for each command"
        raise Misuse(f"{key!r} is not a setting{hint}", field=str(place))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Misuse(f"{key} must be text or a number, not {value!r}", field=str(place))
    return str(value)
