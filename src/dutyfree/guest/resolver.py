"""Names to addresses, a few at a time for each sandbox: a name that nobody answers holds up no one else.

`getaddrinfo` cannot be interrupted. It runs in threads of its own rather than in the loop's pool, which the owner
needs for its own work, and which the loop waits for when it closes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

MAX_THREADS: Final = 4
"""For one sandbox. Further look-ups wait for these."""


class Resolver:
    """The look-ups of one sandbox."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_THREADS)

    async def resolve(self, name: str, port: int) -> list[tuple[int, str]]:
        """Families and addresses. Raises as `getaddrinfo`. Cancelled, it leaves the thread to end by itself."""
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def finish(settle: Callable[[Any], None], value: object) -> None:
            self._slots.release()
            if not answer.done():
                settle(value)

        def look_up() -> None:
            try:
                found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
                ending: tuple[Callable[[Any], None], object] = (answer.set_result, found)
            except (OSError, UnicodeError) as error:
                ending = (answer.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(finish, *ending)

        try:
            threading.Thread(target=look_up, name="dutyfree-resolve", daemon=True).start()
        except RuntimeError as error:
            self._slots.release()
            raise OSError(f"no thread can be started: {error}") from error
        found = await answer
        # A scope, as in fe80::1%eth0, would choose an interface of the host.
        return [(family, str(address[0]).partition("%")[0]) for family, _, _, _, address in found]
