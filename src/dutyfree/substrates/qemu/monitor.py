"""`Monitor`: QEMU's machine protocol on one socket. One caller at a time; descriptors can go along with a command.

The process behind it has a guest inside, so what it says is bounded and checked, like an agent's.
"""

from __future__ import annotations

import array
import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Any

from dutyfree.core.errors import DriverError, SandboxLost

_LONGEST_LINE = 1 << 20


class Monitor:
    """Owns the socket."""

    def __init__(self, end: socket.socket, driver: str) -> None:
        end.setblocking(False)
        self._end = end
        self._driver = driver
        self._pending = b""
        self.greeted = False

    async def greet(self) -> None:
        """Take in the greeting and leave the negotiation."""
        await self._line()
        await self.call("qmp_capabilities")
        self.greeted = True

    async def call(self, command: str, arguments: Mapping[str, Any] | None = None, fd: int | None = None) -> Any:
        """One command and its answer. `DriverError` with QEMU's own words if it refuses."""
        request = json.dumps({"execute": command, **({"arguments": arguments} if arguments else {})}).encode()
        self._send(request, fd)
        while True:
            answer = await self._line()
            if "event" in answer:
                continue
            if "error" in answer:
                words = str(answer["error"].get("desc", answer["error"]))
                raise DriverError(f"{command}: {words}", driver=self._driver, step="create")
            return answer.get("return")

    def close(self) -> None:
        """Let go of it; the machine goes on."""
        self._end.close()

    def _send(self, request: bytes, fd: int | None) -> None:
        """Requests are short enough for the socket's buffer; a descriptor goes with the first byte."""
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            self._end.sendmsg([request], rights)
        except OSError as error:
            raise SandboxLost(f"its monitor ended: {error.strerror}", driver=self._driver) from error

    async def _line(self) -> dict[str, Any]:
        while b"\n" not in self._pending:
            try:
                data = await asyncio.get_running_loop().sock_recv(self._end, 1 << 16)
            except OSError:
                data = b""
            self._pending += data
            if not data or len(self._pending) > _LONGEST_LINE:
                raise SandboxLost("its monitor ended", driver=self._driver)
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise SandboxLost("its monitor does not speak the protocol", driver=self._driver)
        return answer
