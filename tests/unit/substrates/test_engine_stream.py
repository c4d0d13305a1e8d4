import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.core.errors import Violation
from dutyfree.substrates.container.engine_http import Demultiplexer


def framed(stream, data):
    return struct.pack(">BxxxI", stream, len(data)) + data


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=300))), st.integers(1, 40))
def test_streams_come_apart_however_the_bytes_are_cut(frames, size):
    got = {1: b"", 2: b""}

    def sink(stream, data):
        got[stream] += bytes(data)

    apart = Demultiplexer(sink)
    raw = b"".join(framed(stream, data) for stream, data in frames)
    for at in range(0, len(raw), size):
        apart.feed(raw[at : at + size])
    for stream in (1, 2):
        assert got[stream] == b"".join(data for number, data in frames if number == stream)


@given(st.binary(min_size=8, max_size=64))
def test_what_is_not_framed_is_refused_or_taken_but_never_anything_else(raw):
    try:
        Demultiplexer(lambda stream, data: None).feed(raw)
    except Violation:
        assert raw


def test_a_frame_of_a_stream_that_does_not_exist_is_a_violation():
    with pytest.raises(Violation):
        Demultiplexer(lambda stream, data: None).feed(framed(7, b"x"))
