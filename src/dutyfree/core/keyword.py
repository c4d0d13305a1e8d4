"""Say which option was meant: `timeout=5` is answered with `timeout_s`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from dutyfree.core.errors import Misuse

T = TypeVar("T")

_ELSEWHERE = {
    "capture_output": "",
    "check": "",
    "dir": "cwd",
    "directory": "cwd",
    "environment": "env",
    "environ": "env",
    "input": "stdin",
    "mem_limit": "memory_bytes",
    "nproc": "pids",
    "ram": "memory_bytes",
    "text": "",
    "tty": "terminal",
    "workdir": "cwd",
    "working_dir": "cwd",
}
"""Names that other libraries have for the same, and those that are not needed here."""


def unknown_option(call: str, name: str, known: Iterable[str]) -> Misuse:
    """The error for an option that a call does not have, with the one that was meant."""
    names = [one for one in known if not one.startswith("_")]
    meant = nearest(name, names)
    if meant is not None:
        return Misuse(f"{call} has no option {name!r}; did you mean {meant!r}?", field=name)
    return Misuse(f"{call} has no option {name!r}; there are {', '.join(names)}", field=name)


def unknown_for(function: Callable[..., Any], unknown: Iterable[str]) -> Misuse:
    """The error for keywords that a function only takes to say this."""
    known = [one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return unknown_option(f"{function.__name__}()", next(iter(unknown)), known)


def check_names(options: Iterable[str], known: Sequence[str], *, driver: str) -> None:
    """Raise `Misuse` for the first option of `connect` that a driver does not have."""
    for name in options:
        if name not in known:
            meant = nearest(name, known)
            hint = f"did you mean {meant!r}? " if meant else ""
            raise Misuse(f"is not an option; {hint}there are {', '.join(known) or 'none'}", field=name, driver=driver)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, if there is one."""
    names = list(known)
    alias = _ELSEWHERE.get(name.lower())
    if alias in names:
        return alias
    longer = [one for one in names if one.startswith(f"{name}_") or one.replace("_", "") == name.lower()]
    return next(iter(longer or get_close_matches(name, names, n=1)), None)


def named_options(kind: type[T]) -> type[T]:
    """Have a class name the option that was meant when its constructor is given an unknown one."""
    plain: Callable[..., None] = kind.__init__
    known = list(inspect.signature(plain).parameters)[1:]

    @wraps(plain)
    def init(self: T, *args: Any, **options: Any) -> None:
        try:
            plain(self, *args, **options)
        except TypeError:
            for name in options.keys() - known:
                raise unknown_option(f"{kind.__name__}()", name, known) from None
            raise

    kind.__init__ = init  # type: ignore[method-assign, assignment]
    return kind
