"""Plain HTTP on the engine's unix socket: a request and its reply, a body streamed up, a connection taken over.

Requests go as HTTP/1.0, each on a connection of its own: the reply then ends where the connection does, and there is
no chunked encoding to undo. Connecting to a unix socket costs less than keeping a pool of connections would.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote, urlencode

from dutyfree.core.errors import DriverError, Unavailable, Violation
from dutyfree.guest.frame import Parser
from dutyfree.guest.thread import in_thread
from dutyfree.guest.transport import Descriptors, Lost

Value = str | int | list[str]
"""Of a query's parameter; one that is repeated is a list."""

_PIECE = 1 << 16
_MAX_HEAD = 1 << 16
_UPGRADED = (101, 200)
_ENDS = 300
_PATIENCE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """Answer of the engine."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """It did what it was asked."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The engine's own words, in one line; the middle of very many is left out (some name a path of any length)."""
        try:
            said = self.json()
        except ValueError:
            said = self.body.decode(errors="replace")
        words = (said.get("message") or said.get("cause")) if isinstance(said, dict) else None
        line = " ".join(str(words or said).split())
        return line if len(line) <= 2 * _ENDS else f"{line[:_ENDS]} … {line[-_ENDS:]}"


class Http:
    """Speaks to one socket."""

    def __init__(self, path: str, driver: str) -> None:
        self.path = path
        self._driver = driver
        self._loop = asyncio.get_running_loop()

    async def call(self, method: str, path: str, body: object = None, **query: Value) -> Reply:
        """A request and its whole reply."""
        content = b"" if body is None else json.dumps(body).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        with await self._connected() as connection:
            try:
                await self._loop.sock_sendall(
                    connection, f"{_line(method, path, query, '1.0')}{kind}\r\n".encode() + content
                )
                return await self._reply(connection)
            except OSError as error:
                raise self._broken(error) from error

    async def download(self, path: str, file: IO[bytes], **query: Value) -> Reply:
        """GET, and write the body to a file as it comes; an error's body stays in the reply."""
        with await self._connected() as connection:
            try:
                await self._loop.sock_sendall(connection, f"{_line('GET', path, query, '1.0')}\r\n".encode())
                status, piece = await self._head(connection)
                if status not in range(200, 300):
                    return Reply(status=status, body=piece + await self._loop.sock_recv(connection, _PIECE))
                while True:
                    await in_thread(file.write, piece)
                    if not (piece := await self._loop.sock_recv(connection, 1 << 20)):
                        return Reply(status=status, body=b"")
            except OSError as error:
                raise self._broken(error) from error

    async def upload(self, path: str, pieces: Iterator[bytes], **query: Value) -> Reply:
        """POST a tar of unknown size."""
        head = f"{_line('POST', path, query, '1.1')}Content-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        with await self._connected() as connection:
            try:
                await self._loop.sock_sendall(connection, head.encode())
                while piece := await in_thread(next, pieces, b""):
                    await self._loop.sock_sendall(connection, b"%x\r\n%b\r\n" % (len(piece), piece))
                await self._loop.sock_sendall(connection, b"0\r\n\r\n")
                return await self._reply(connection)
            except OSError as error:
                raise self._broken(error) from error

    async def hijack(self, path: str, body: object = None, **query: Value) -> tuple[socket.socket, bytes]:
        """POST, and take the connection over: the socket, and what came on it already. `DriverError` if refused."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{_line('POST', path, query, '1.1')}Connection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        connection = await self._connected()
        with self._kept(connection):
            await self._loop.sock_sendall(connection, head.encode() + content)
            status, early = await self._head(connection)
            if status not in _UPGRADED:
                raise DriverError(Reply(status=status, body=early).message, driver=self._driver)
        return connection, early

    async def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        with self._kept(connection):
            await self._loop.sock_connect(connection, self.path)
        return connection

    @contextmanager
    def _kept(self, connection: socket.socket) -> Iterator[None]:
        """The connection is handed on, unless the block fails."""
        try:
            yield
        except OSError as error:
            connection.close()
            raise self._broken(error) from error
        except BaseException:
            connection.close()
            raise

    async def _head(self, connection: socket.socket) -> tuple[int, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = await self._loop.sock_recv(connection, _PIECE)
            if not piece or len(data) > _MAX_HEAD:
                raise ConnectionResetError("the engine closed the connection")
            data += piece
        head, _, rest = data.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), rest

    async def _reply(self, connection: socket.socket) -> Reply:
        status, first = await self._head(connection)
        pieces = [first]
        while piece := await self._loop.sock_recv(connection, _PIECE):
            pieces.append(piece)
        return Reply(status=status, body=b"".join(pieces))

    def _broken(self, error: OSError) -> Unavailable:
        return Unavailable(f"the engine at {self.path} does not answer: {error.strerror or error}", driver=self._driver)


def _line(method: str, path: str, query: dict[str, Value], version: str) -> str:
    asked = f"?{urlencode(query, doseq=True)}" if query else ""
    return f"{method} {quote(path)}{asked} HTTP/{version}\r\nHost: engine\r\n"


def ask(path: str, what: str) -> dict[str, Any] | list[Any] | str:
    """An engine's answer to a GET; or, as a string, why there is none. Blocks for a moment at most."""
    connection = http.client.HTTPConnection("engine", timeout=_PATIENCE_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(_PATIENCE_S)
    try:
        connection.sock.connect(path)
        connection.request("GET", what)
        answer = json.loads(connection.getresponse().read())
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, http.client.HTTPException) as error:
        return f"it is no engine: {error}"
    finally:
        connection.close()
    return answer if isinstance(answer, dict | list) else "it is no engine"


STDOUT, STDERR = 1, 2

_HEAD = struct.Struct(">BxxxI")
_LARGEST = 64 << 20
_BUFFER = 64 << 10
_KEPT_STDERR = 4096


class Demultiplexer(Parser):
    """Hands on the payload of each frame, as far as it is there, without waiting for the whole frame."""

    __slots__ = ("_buffer", "_head", "_left", "_sink_of", "_stream")

    def __init__(self, sink: Callable[[int, memoryview], None]) -> None:
        """`sink` takes the stream's number and bytes that are valid during the call only."""
        self._buffer = memoryview(bytearray(_BUFFER))
        self._sink_of = sink
        self._head = b""
        self._stream = 0
        self._left = 0

    def room(self) -> memoryview:
        """All of the buffer: nothing is kept in it."""
        return self._buffer

    def advance(self, count: int) -> None:
        """Take apart what came. Raises `Violation` for what is no frame."""
        self.feed(self._buffer[:count])

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """The same for bytes in hand."""
        rest = memoryview(data)
        while rest:
            if self._left:
                piece = rest[: self._left]
                self._left -= len(piece)
                rest = rest[len(piece) :]
                self._sink_of(self._stream, piece)
                continue
            missing = _HEAD.size - len(self._head)
            self._head += bytes(rest[:missing])
            rest = rest[missing:]
            if len(self._head) == _HEAD.size:
                self._stream, self._left = _HEAD.unpack(self._head)
                self._head = b""
                if self._stream > STDERR or self._left > _LARGEST:
                    raise Violation("the engine's stream is not framed as it should be")

    def shrink(self) -> None:
        """The buffer is small already."""


class Multiplexed:
    """A `Transport` over a hijacked connection: the agent's stream is the container's stdin and stdout."""

    def __init__(self, connection: socket.socket, early: bytes) -> None:
        self._inner = Descriptors(connection)
        self._early = early
        self.stderr = b""
        """The end of what came on stderr: why the program did not start, if it did not."""
        self.send = self._inner.send
        self.drained = self._inner.drained
        self.close = self._inner.close
        self.disown = self._inner.disown

    def start(self, parser: Parser, lost: Lost) -> None:
        """Deliver stdout to `parser`."""

        def sink(stream: int, data: memoryview) -> None:
            if stream == STDOUT:
                parser.feed(data)
            else:
                self.stderr = (self.stderr + bytes(data))[-_KEPT_STDERR:]

        apart = Demultiplexer(sink)
        self._inner.start(apart, lost)
        if self._early:
            apart.feed(self._early)
