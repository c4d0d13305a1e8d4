"""`FrozenDict`: the mapping inside our values, which are shared, hashed, and sent to other processes."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that cannot be changed. `dict(it)` is a copy that can."""

    __slots__ = ()

    def _refuse(self, *_args: Any, **_named: Any) -> NoReturn:
        raise TypeError("this mapping belongs to a value and cannot be changed: make a copy by dict(…)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)
