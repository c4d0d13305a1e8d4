"""Keep substrates and sandboxes in the process and on the event loop that they belong to.

`fork` copies everything that holds a connection: descriptors, event loops, child processes. A copy
that acted would take answers meant for the owner, or end the owner's sandboxes. So each copy is
sealed in the child before any of its code runs. Calls raise `Misuse`. `destroy` and `close` do
nothing, because a `with` block that the child leaves ends nothing of the owner's. An action
compares the running loop with its own when its request is sent, and checks nothing else.
"""

from __future__ import annotations

import asyncio
import os
from inspect import getattr_static, iscoroutinefunction, isfunction
from typing import Any, Final, NoReturn, Protocol, Self
from weakref import WeakValueDictionary

from dutyfree.core.errors import Misuse

INHERITED: Final = "it belongs to the process that this one was forked from: connect in this process"
OTHER_LOOP: Final = "it belongs to another event loop: connect on this one, or use dutyfree.blocking"
_ENDS: Final = ("destroy", "close")


class Owned(Protocol):
    """Something that only the process that made it may use."""

    def disown(self) -> None:
        """Refuse every call from now on, in a forked child, and touch nothing that the owner uses."""
        ...


_owned: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By identity: a driver's class may say when two of its objects are equal, and then they have no hash."""
_inherited: list[Any] = []
"""What a forked child has of its parent. Kept, so that no collector ends it with calls into the parent's loops."""


def own(thing: Owned) -> None:
    """Have `thing.disown()` called in every process that is forked from this one while the thing exists."""
    _owned[id(thing)] = thing


def seal(thing: object) -> None:
    """Make every public method of an object refuse, but those that end it: they do nothing."""
    for name in dir(type(thing)):
        method = getattr_static(type(thing), name)
        if not name.startswith("_") and name != "disown" and isfunction(method):
            thing.__dict__[name] = _substitute(iscoroutinefunction(method), ends=name in _ENDS)


def check_loop(home: asyncio.AbstractEventLoop | None) -> None:
    """Raise `Misuse` on any event loop but this one. None: it belongs to no loop."""
    if home is not None and asyncio.get_running_loop() is not home:
        raise Misuse(OTHER_LOOP)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of the caller, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Belonging:
    """Tie an object to the process and the event loop that made it."""

    _home: asyncio.AbstractEventLoop | None

    def __new__(cls, *_args: Any, **_named: Any) -> Self:
        """Note whose it is: drivers' own initialisers need not know."""
        self = super().__new__(cls)
        self._home = running_loop()
        own(self)
        return self

    def __reduce__(self) -> NoReturn:
        raise Misuse(f"a {type(self).__name__} cannot be sent to another process: connect there")

    def disown(self) -> None:
        """Refuse every call in a forked child, and end nothing."""
        seal(self)


def _substitute(waits: bool, *, ends: bool) -> Any:
    if ends:
        return _nothing_async if waits else _nothing
    return _refuse_async if waits else _refuse


def _refuse(*_args: object, **_named: object) -> NoReturn:
    raise Misuse(INHERITED)


async def _refuse_async(*_args: object, **_named: object) -> NoReturn:
    raise Misuse(INHERITED)


def _nothing() -> None:
    pass


async def _nothing_async() -> None:
    pass


def _disown_all() -> None:
    _inherited[:] = _owned.values()
    _owned.clear()
    for thing in _inherited:
        thing.disown()


os.register_at_fork(after_in_child=_disown_all)
