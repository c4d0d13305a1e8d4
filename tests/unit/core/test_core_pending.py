"""Clean-up goes to its end, whatever becomes of a part of it."""

import asyncio

import pytest

from dutyfree.core.pending import finish_all


def test_all_are_awaited_and_what_failed_first_in_their_order_is_raised():
    ended = []

    async def work(name, delay_s, error=None):
        await asyncio.sleep(delay_s)
        ended.append(name)
        if error is not None:
            raise error

    async def main():
        await finish_all([work("a", 0.02), work("b", 0.01, OSError("b")), work("c", 0, OSError("c")), work("d", 0.03)])

    with pytest.raises(OSError, match="b"):
        asyncio.run(main())
    assert sorted(ended) == ["a", "b", "c", "d"]


def test_nothing_is_raised_where_nothing_failed():
    asyncio.run(finish_all([]))
    asyncio.run(finish_all([asyncio.sleep(0)]))
