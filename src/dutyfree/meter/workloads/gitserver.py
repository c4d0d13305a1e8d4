"""A git server on the loopback interface, for as long as a measurement runs: the network end of T2's clone.

Speaks git's own protocol by handing each connection to `git daemon --inetd`, so a clone is a real negotiation and pack
transfer, and the image needs no more than git itself. Serves one directory, read-only, to this machine alone.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import TracebackType


class GitServer:
    """`async with GitServer(directory) as address`: `(host, port)` at which every bare repository in it is served."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> tuple[str, int]:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._socket), name="git server")
        host, port = self._socket.getsockname()
        return host, port

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as connections:
            while True:
                connection, _ = await loop.sock_accept(listener)
                connections.create_task(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        # git reads and writes the socket itself, in blocking mode, as inetd would give it.
        connection.setblocking(True)
        with connection:
            process = await asyncio.create_subprocess_exec(
                "git",
                "daemon",
                "--inetd",
                "--export-all",
                f"--base-path={self._directory}",
                "--timeout=60",
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=asyncio.subprocess.DEVNULL,
            )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
