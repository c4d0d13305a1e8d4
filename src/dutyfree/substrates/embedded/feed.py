"""A command's input in pieces that fit the frames of any library, then its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from dutyfree.substrates.api.execution import Execution

PIECE = 1 << 16


async def feed(
    wanted: Execution, write: Callable[[bytes], Awaitable[None]], close: Callable[[], Awaitable[None]]
) -> None:
    """Send all of it. Raises what `write` raises: input that nobody reads is the caller's to forgive."""
    async with aclosing(_pieces(wanted)) as pieces:
        async for piece in pieces:
            await write(piece)
    await close()


def has_input(wanted: Execution) -> bool:
    """There is something to send, now or later."""
    return not isinstance(wanted.stdin, bytes | bytearray | memoryview) or len(wanted.stdin) > 0


async def _pieces(wanted: Execution) -> AsyncGenerator[bytes, None]:
    if isinstance(wanted.stdin, bytes | bytearray | memoryview):
        async for part in _cut(wanted.stdin):
            yield part
        return
    async with aclosing(wanted.stdin) as given:
        async for piece in given:
            async for part in _cut(piece):
                yield part


async def _cut(data: bytes | bytearray | memoryview) -> AsyncIterator[bytes]:
    whole = memoryview(data)
    for start in range(0, len(whole), PIECE):
        yield bytes(whole[start : start + PIECE])
