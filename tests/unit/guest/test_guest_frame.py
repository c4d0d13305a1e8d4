"""The frame parser: any chunking gives the same frames, any bytes give frames or a `Violation`."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.core.errors import Violation
from dutyfree.guest.frame import LARGE, SMALL, Parser

frames = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1),
        st.integers(0, 255),
        st.integers(0, 255),
        st.one_of(st.binary(max_size=64), st.integers(0, 70_000).map(bytes)),
    ),
    max_size=8,
)


def stream_of(items):
    return b"".join(
        struct.pack("<IIBBH", len(data), channel, kind, flags, 0) + data for channel, kind, flags, data in items
    )


def collector():
    seen = []
    return seen, Parser(lambda channel, kind, flags, payload: seen.append((channel, kind, flags, bytes(payload))))


@given(frames, st.lists(st.integers(1, 40_000), max_size=20))
def test_any_chunking_gives_the_same_frames(items, cuts):
    seen, parser = collector()
    rest = stream_of(items)
    for cut in cuts:
        parser.feed(rest[:cut])
        rest = rest[cut:]
    parser.feed(rest)
    assert seen == items


@given(frames)
def test_reading_into_the_room_gives_the_same_frames(items):
    seen, parser = collector()
    rest = stream_of(items)
    while rest:
        room = parser.room()
        assert len(room) > 0
        count = min(len(room), len(rest))
        room[:count] = rest[:count]
        parser.advance(count)
        rest = rest[count:]
    assert seen == items


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_arbitrary_bytes_give_frames_or_a_violation(pieces):
    _, parser = collector()
    try:
        for piece in pieces:
            parser.feed(piece)
    except Violation:
        pass
    assert len(parser.room()) <= LARGE


def test_a_frame_over_the_limit_is_refused_by_its_header_alone():
    _, parser = collector()
    with pytest.raises(Violation, match="claims 1048577 bytes"):
        parser.feed(struct.pack("<IIBBH", (1 << 20) + 1, 1, 0x21, 0, 0))


def test_the_largest_frame_passes_and_its_memory_is_given_back():
    seen, parser = collector()
    payload = bytes(range(256)) * 4096
    parser.feed(stream_of([(7, 0x21, 0, payload), (8, 0x50, 1, b"x")]))
    assert seen == [(7, 0x21, 0, payload), (8, 0x50, 1, b"x")]
    parser.shrink()
    assert len(parser.room()) == SMALL


def test_shrinking_keeps_half_a_frame():
    seen, parser = collector()
    whole = stream_of([(1, 0x21, 0, bytes(100_000)), (2, 0x21, 0, b"tail")])
    parser.feed(whole[:-2])
    parser.shrink()
    parser.feed(whole[-2:])
    assert [item[3] for item in seen] == [bytes(100_000), b"tail"]
