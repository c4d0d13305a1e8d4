"""`read_options`: what is written in a substrate's name, as a value whose fields are checked."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dutyfree.core.errors import Misuse
from dutyfree.core.keyword import check_names

T = TypeVar("T")

_WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def read_options(options: Mapping[str, object], kind: type[T], *, driver: str) -> T:
    """Make a `kind` of the options. It is a dataclass: its annotations parse and check, and its defaults fill the rest.

    Annotations may be `str`, `int`, `float`, `bool`, `Literal[…]`, and any of them `| None`.
    """
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    check_names(options, list(known), driver=driver)
    given = {}
    for name, value in options.items():
        try:
            given[name] = _parsed(value, hints[name])
        except ValueError as error:
            raise Misuse(str(error), field=name, driver=driver) from None
    return kind(**given)


def _parsed(value: object, hint: Any) -> object:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"must be {' or '.join(map(str, get_args(hint)))}, not {value!r}")
        return value
    if hint is bool:
        return _flag(value)
    if hint in (int, float) and not isinstance(value, bool):
        return _number(value, hint)
    if hint is str and isinstance(value, str):
        return value
    raise ValueError(f"must be {'text' if hint is str else f'a {hint.__name__}'}, not {value!r}")


def _flag(value: object) -> bool:
    if str(value).lower() not in _WORDS:
        raise ValueError(f"must be yes or no, not {value!r}")
    return _WORDS[str(value).lower()]


def _number(value: object, kind: type[int | float]) -> int | float:
    try:
        return kind(str(value))
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"must be {what}, not {value!r}") from None
