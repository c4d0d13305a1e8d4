"""Bound the connections that sandboxes make their owner open. All sandboxes share the owner's descriptors."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class Budget:
    """Connections at once, of all forwards: at most a quarter of the descriptors that the soft limit allows.

    No forward may have more than what is left for the others, so that one that takes all it can leaves as much again.
    """

    def __init__(self) -> None:
        self._taken: set[object] = set()

    @contextmanager
    def connection(self, mine: set[object], most: int) -> Iterator[bool]:
        """Count one more, in `mine` and in all, while the context lasts; False: it would be more than `most`, or than fair."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = most if soft == resource.RLIM_INFINITY else soft // 4 - len(self._taken)
        if len(mine) >= min(most, room):
            yield False
            return
        token = object()
        mine.add(token)
        self._taken.add(token)
        try:
            yield True
        finally:
            mine.discard(token)
            self._taken.discard(token)


SHARED: Final = Budget()
"""That of this process: descriptors are the process's, whichever loop or substrate opens them."""
