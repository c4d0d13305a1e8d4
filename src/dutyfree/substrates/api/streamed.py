"""An exec call that is a program of its own: `runc exec`, `ssh`. Its streams are sockets, so that nothing of it is kept in files."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dutyfree.core.errors import DriverError
from dutyfree.substrates.api.execution import STDERR, STDOUT, Execution, Sink
from dutyfree.substrates.api.feed import drain, feed
from dutyfree.substrates.program import exit_of, start


async def streamed(argv: Sequence[str], wanted: Execution, sink: Sink) -> int:
    """Run a program on three sockets; its exit code, once its output has been taken."""
    pairs = [socket.socketpair() for _ in range(3)]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for end in ours:
        end.setblocking(False)
    try:
        process = start(argv, stdin=theirs[0].fileno(), stdout=theirs[1].fileno(), stderr=theirs[2].fileno())
    except OSError as error:
        for end in ours:
            end.close()
        raise DriverError(f"cannot start {argv[0]}: {error.strerror}", step="exec") from error
    finally:
        for end in theirs:
            end.close()
    feeder = asyncio.ensure_future(feed(ours[0], wanted))
    drains = asyncio.gather(drain(ours[1], STDOUT, sink), drain(ours[2], STDERR, sink))
    try:
        code = await exit_of(process)
        await drains
        return code
    finally:
        feeder.cancel()
        drains.cancel()
        await asyncio.wait({feeder, asyncio.ensure_future(_ended(drains))})
        for end in ours:
            end.close()


async def _ended(work: asyncio.Future[Any]) -> None:
    with suppress(asyncio.CancelledError, OSError):
        await work
