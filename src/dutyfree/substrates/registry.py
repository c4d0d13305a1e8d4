"""From a name to a connected substrate: the only place that knows how names are written.

    native                       a driver, by the entry point of that name (group `dutyfree.substrates`)
    docker?dispatch=api          the same, with options for it
    package.module:object        a driver that is not installed as an entry point
    warm:docker, http://…        a wrapper, by the entry point named by the prefix (group `dutyfree.wrappers`)

A driver is a `core.contract.Driver`. A wrapper is the same, but its `connect` takes the rest of the name first. Only
the driver that was asked for is imported, and a missing extra becomes `Unavailable` with the command that installs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast
from urllib.parse import parse_qsl

from dutyfree.core.contract import Driver, Substrate
from dutyfree.core.descriptor import raise_limit
from dutyfree.core.errors import DutyfreeError, Misuse, Unavailable
from dutyfree.core.log import LOG
from dutyfree.core.pending import Pending
from dutyfree.core.settings import default_substrate
from dutyfree.core.timeline import now_ns

DRIVERS = "dutyfree.substrates"
WRAPPERS = "dutyfree.wrappers"
URL_SCHEMES = ("http", "https")


class Wrapper(Protocol):
    """Something that makes a substrate of the rest of a name: `warm:docker` is `warm` over `docker`."""

    name: str

    async def connect(self, rest: str, options: Mapping[str, str]) -> Substrate:
        """Start using it. For a URL, `rest` is the whole URL."""
        ...


def connect(name: str | None = None, **options: str | float | os.PathLike[str]) -> Pending[Substrate]:
    """A substrate by its name: await it, or enter it. Options may also be written in the name, after a `?`.

    Without a name: what `DUTYFREE_SUBSTRATE` or the config file says, else `native`.

    Numbers and paths mean what they would as text; True is "yes" and False is "no".

    Raises `Misuse` for a name nobody knows, `Unavailable` if the substrate cannot run here; both say what to do.
    """
    return Pending(_connect(default_substrate() if name is None else name, options), _close)


def _option(name: str, value: object) -> str:
    """An option as drivers read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise Misuse(f"must be text, a number or a path, not {type(value).__name__}", field=name)


def drivers() -> Iterator[tuple[str, Callable[[], Driver]]]:
    """Every installed driver's name, and how to load it; nothing is imported until that is called."""
    for name, point in sorted(_points(DRIVERS).items()):
        yield name, lambda point=point: cast("Driver", _load(point))  # type: ignore[misc]


def find(name: str) -> tuple[Driver, dict[str, str]]:
    """The driver of a name that has no wrapper, and the options written in it."""
    plain, options = _split(name)
    if ":" in plain and "." in plain.partition(":")[0]:
        return _load_path(plain), options
    point = _points(DRIVERS).get(plain)
    if point is None:
        raise _unknown(plain)
    return cast("Driver", _load(point)), options


async def _connect(name: str, given: Mapping[str, object]) -> Substrate:
    options = {key: _option(key, value) for key, value in given.items()}
    if not isinstance(name, str) or not name:
        raise Misuse(f"must be the name of a substrate, not {name!r}", field="name")
    raise_limit()
    start_ns = now_ns()
    substrate = await _opened(name, options)
    LOG.info("connected to %s (%s) in %.0f ms", name, substrate.version, (now_ns() - start_ns) / 1e6)
    return substrate


async def _opened(name: str, options: Mapping[str, str]) -> Substrate:
    prefix, colon, rest = name.partition(":")
    point = _points(WRAPPERS).get("http" if prefix in URL_SCHEMES else prefix) if colon else None
    if point is not None:
        if prefix in URL_SCHEMES:
            return await cast("Wrapper", _load(point)).connect(name, options)
        # Options in the name belong to the innermost driver; those of the call to the wrapper.
        return await cast("Wrapper", _load(point)).connect(rest, options)
    driver, written = find(name)
    return await driver.connect({**written, **options})


def _split(name: str) -> tuple[str, dict[str, str]]:
    plain, mark, query = name.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if mark else []
    except ValueError as error:
        raise Misuse(f"options are written ?key=value&key=value, not {query!r}", field="name") from error
    return plain, dict(pairs)


def _load_path(path: str) -> Driver:
    try:
        found = _load(EntryPoint(name=path, value=path, group=DRIVERS))
    except (TypeError, ValueError) as error:  # a relative or an empty name
        raise Misuse(f"{path!r} names no driver: {error}", field="name") from error
    if not (hasattr(found, "probe") and hasattr(found, "connect")):
        raise Misuse(f"{path!r} is no driver: it has no probe() and connect()", field="name")
    return cast("Driver", found)


def _load(point: EntryPoint) -> object:
    """Import what an entry point names: the one classification of import errors."""
    try:
        return point.load()
    except AttributeError as error:
        raise Misuse(f"{point.value!r} names no driver: {error}", field="name") from error
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        if f"{point.module}.".startswith(f"{missing}."):
            raise Misuse(f"{point.name!r} is kept in {point.value}, and there is no {missing}", field="name") from error
        ours = __name__.partition(".")[0]
        if missing.startswith(f"{ours}."):
            raise
        extra = f"'dutyfree[{point.name}]'" if point.module.startswith(f"{ours}.") else missing
        raise Unavailable(
            f"it needs the Python module {missing}, which is not installed",
            enable=f"pip install {extra}",
            driver=point.name,
            step="import",
        ) from error


def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _unknown(name: str) -> DutyfreeError:
    known = sorted(_points(DRIVERS))
    wrappers = sorted(_points(WRAPPERS))
    prefix, colon, _ = name.partition(":")
    if colon:
        what = f"no wrapper {prefix!r} is installed (have: {', '.join(wrappers) or 'none'})"
        return Misuse(f"{what}; a driver's own path is written package.module:object", field="name")
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return Misuse(f"no substrate is called {name!r}; known: {', '.join(known)}{hint}", field="name")


async def _close(substrate: Substrate) -> None:
    await substrate.close()
