"""Settings of a pool: `Settings`, also as the text options of `connect("warm:X", …)`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.errors import Misuse
from dutyfree.core.keyword import check_names, named_options

_OPTIONS = ("sandboxes", "memory", "idle", "demand", "creations", "refill", "queue", "wait_s", "stages", "target")
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


@named_options
@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Bounds and habits of one pool."""

    sandboxes: int = 4096
    """Most sandboxes at once: leased, idle and being created."""
    memory_bytes: int | None = None
    """Most memory: each sandbox counts with its memory limit, or with `sandbox_bytes` if it has none."""
    sandbox_bytes: int = 256 << 20
    idle: int = 64
    """Most sandboxes that wait for work, over all start states without a target."""
    demand: bool = True
    """Keep sandboxes ready for what has been asked for, as often as it is asked for. False: targets only."""
    creations: int = 0
    """Most creations at once; 0: four per processor."""
    refill: int = 2
    """Most of these creations for the stock."""
    queue: int = 10_000
    """Most claims that wait for room; the next one is `Saturated`."""
    wait_s: float = 60.0
    """How long one waits for room before it is `Saturated`."""

    def __post_init__(self) -> None:
        for name, low in (
            ("sandboxes", 1),
            ("sandbox_bytes", 1),
            ("idle", 0),
            ("creations", 0),
            ("refill", 1),
            ("queue", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise Misuse(f"must be a whole number of at least {low}, not {value!r}", field=name, driver="warm")
        if self.memory_bytes is not None and not (
            isinstance(self.memory_bytes, int) and self.memory_bytes >= self.sandbox_bytes
        ):
            what = f"must hold at least one sandbox of {self.sandbox_bytes} bytes, not {self.memory_bytes!r}"
            raise Misuse(what, field="memory_bytes", driver="warm")
        if isinstance(self.wait_s, bool) or not isinstance(self.wait_s, int | float) or not self.wait_s >= 0:
            raise Misuse(f"must be seconds, not {self.wait_s!r}", field="wait_s", driver="warm")

    @property
    def at_once(self) -> int:
        """`creations`, or what the machine suggests."""
        return self.creations or 4 * (os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Parsed text options of `connect`."""

    settings: Settings
    declarations: tuple[Path, ...] = ()
    """Files that declare start states to keep ready."""
    target: int = 0
    """How many of each; of the plain image if none is declared."""


def parse(options: Mapping[str, str]) -> Options:
    """Parse text. `Misuse` for a name that is no option."""
    check_names(options, _OPTIONS, driver="warm")
    fields: dict[str, int | float | bool] = {}
    for name, text in options.items():
        if name in ("sandboxes", "idle", "creations", "refill", "queue"):
            fields[name] = _whole(name, text)
        elif name == "memory":
            fields["memory_bytes"] = _size(name, text)
        elif name == "wait_s":
            fields[name] = _number(name, text)
        elif name == "demand":
            fields[name] = _yes(name, text)
    paths = tuple(Path(one) for one in options.get("stages", "").split(",") if one)
    return Options(
        settings=Settings(**fields),  # type: ignore[arg-type]
        declarations=paths,
        target=_whole("target", options.get("target", "1" if paths else "0")),
    )


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise Misuse(f"must be a whole number, not {text!r}", field=name, driver="warm")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise Misuse(f"must be a number, not {text!r}", field=name, driver="warm") from error


def _yes(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise Misuse(f"must be yes or no, not {text!r}", field=name, driver="warm")
    return text == "yes"


def _size(name: str, text: str) -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or (unit and unit not in _UNITS):
        raise Misuse(f"must be a size such as 8G, not {text!r}", field=name, driver="warm")
    return int(number) << _UNITS.get(unit, 0)
