"""A command's input, however it was given, in pieces that fit where they go."""

import asyncio
from contextlib import aclosing

import pytest

from dutyfree.driver.exec_call import ExecCall


async def sent(wanted, most):
    async with aclosing(wanted.input(most)) as pieces:
        return [bytes(piece) async for piece in pieces]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_cut_in_order(kind):
    wanted = ExecCall(argv=["x"], stdin=kind(b"abcdefgh"))
    assert asyncio.run(sent(wanted, 3)) == [b"abc", b"def", b"gh"]
    assert wanted.has_input


def test_what_comes_in_pieces_is_cut_where_it_is_too_long_and_never_joined():
    async def main():
        async def given():
            yield b"ab"
            yield b""
            yield b"cdefg"

        wanted = ExecCall(argv=["x"], stdin=given())
        assert wanted.has_input
        return await sent(wanted, 3)

    assert asyncio.run(main()) == [b"ab", b"cde", b"fg"]


def test_nothing_is_no_piece():
    wanted = ExecCall(argv=["x"])
    assert asyncio.run(sent(wanted, 3)) == []
    assert not wanted.has_input


def test_whoever_stops_reading_closes_what_was_given():
    closed = []

    async def given():
        try:
            while True:
                yield b"more"
        finally:
            closed.append("once")

    async def main():
        async with aclosing(ExecCall(argv=["x"], stdin=given()).input(4)) as pieces:
            assert await anext(pieces) == b"more"

    asyncio.run(main())
    assert closed == ["once"]
