"""What a client says to the proxy: taken apart strictly, since two readers of one text must not see two requests."""

import asyncio

import pytest

from dutyfree.guest.http import BadRequest, asked_by_http, body


class Heard:
    """A client's ear."""

    def __init__(self):
        self.text = b""

    def write(self, data):
        self.text += data

    async def drain(self):
        pass


async def parse(text):
    reader = asyncio.StreamReader()
    reader.feed_data(text)
    reader.feed_eof()
    asked = await asked_by_http(await reader.readexactly(1), reader, Heard())
    return asked, b"".join([piece async for piece in body(asked, reader)])


def sent(text):
    asked, rest = asyncio.run(parse(text))
    return asked.first + rest


GET = b"GET http://x.org/ HTTP/1.1\r\n"
POST = b"POST http://x.org:81/p?q HTTP/1.1\r\n"
SECOND = b"GET /second HTTP/1.1\r\nHost: elsewhere\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"X: 1\rConnection: keep-alive\r\n", b"X: 1\r\r\n", b"X: \0\r\n", b"X: \x0b\r\n", b"X: \x7f\r\n", b"Host : x\r\n",
        b"\tX: 1\r\n", b"X: 1\r\n folded\r\n", b"nothing\r\n", b": empty\r\n", b"X\xc2\xa0: 1\r\n", b"Content-Length: +1\r\n",
        b"Content-Length: 1\r\nContent-Length: 1\r\n", b"Content-Length: 1, 1\r\n", b"Content-Length: -1\r\n", b"Content-Length: 0x1\r\n",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: identity\r\n",
        b"Content-Length: \r\n",
    ],
)  # fmt: skip
def test_a_head_that_can_be_read_in_two_ways_is_refused(head):
    with pytest.raises(BadRequest):
        asyncio.run(parse(GET + head + b"\r\n" + SECOND))


@pytest.mark.parametrize(
    "line",
    [
        b"GET  http://x.org/ HTTP/1.1", b"GET http://x.org/ HTTP/1.1 ", b"GET\thttp://x.org/ HTTP/1.1", b"G(T http://x.org/ HTTP/1.1",
        b"GET http://x.org/ HTTP/1.2", b"GET http://x.org/ HTTP/1.1\rX: 1", b"GET http://x.org/\xff HTTP/1.1", b"GET http://x.org/\x7f HTTP/1.1",
        b"GET http://a@x.org/ HTTP/1.1", b"GET / HTTP/1.1", b"GET ftp://x.org/ HTTP/1.1", b"CONNECT x.org HTTP/1.1", b"CONNECT x.org:1/p HTTP/1.1",
    ],
)  # fmt: skip
def test_a_first_line_that_is_not_plain_is_refused(line):
    with pytest.raises(BadRequest):
        asyncio.run(parse(line + b"\r\n\r\n"))


def test_nothing_is_sent_on_after_the_body():
    head = b"POST /p?q HTTP/1.1\r\nHost: x.org:81\r\n%sConnection: close\r\n\r\n"
    assert sent(POST + b"\r\n" + SECOND) == head % b""
    length = b"Content-Length: 3\r\n"
    assert sent(POST + length + b"Connection: keep-alive\r\n\r\nabc" + SECOND) == head % length + b"abc"
    chunked = b"Transfer-Encoding: Chunked\r\n"
    text = POST + chunked + b"\r\n03;x=y\r\nabc\r\n0\r\nX: trailer\r\n\r\n" + SECOND
    assert sent(text) == head % chunked + b"3\r\nabc\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "chunks", [b"+3\r\nabc\r\n", b"3\r\nabcd\r\n", b"\r\n", b"3;\rx\r\nabc\r\n", b"0x3\r\nabc\r\n", b"f" * 20 + b"\r\n"]
)
def test_a_chunk_that_can_be_read_in_two_ways_ends_the_request(chunks):
    with pytest.raises(BadRequest):
        asyncio.run(parse(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"))


def test_the_host_is_the_one_that_was_checked():
    assert b"Host: x.org\r\n" in sent(b"GET http://X.org/ HTTP/1.1\r\nHOST: other\r\n\r\n")
    assert b"Host: [::1]:5\r\n" in sent(b"GET http://[::1]:5/ HTTP/1.0\r\n\r\n")
