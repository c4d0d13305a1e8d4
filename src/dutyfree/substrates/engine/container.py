"""One container of the engine: made, attached, started, executed in, removed.

Its main process reads the attached stdin and ends with it (the agent, or `cat` in `api` mode); the engine closes that
when its one client is gone and then removes the container, so that a kill -9 of ours leaves nothing running.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dutyfree.core.errors import DriverError, Misuse, SandboxLost, Saturated
from dutyfree.core.pending import completed
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink
from dutyfree.driver.exec_command import is_refusal, is_user_refusal
from dutyfree.driver.program import PIECE, feed, poll
from dutyfree.substrates.engine.http import Http, Reply
from dutyfree.substrates.engine.stream import Demultiplexer

_ABSENT = 404
_FIRST = 4096
_NOT_STARTED = (125, 126, 127)
_REMOVAL_S = 30.0
_OWN_REMOVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Container:
    """By the name we gave it, so that it can be removed even if its creation was never answered."""

    http: Http
    name: str
    driver: str

    async def create(self, wanted: Mapping[str, Any]) -> None:
        """Make it; nothing runs yet."""
        reply = await completed(self.http.call("POST", "/containers/create", wanted, name=self.name))
        if not reply.ok:
            raise self._refused("create", reply)

    async def attach(self) -> tuple[socket.socket, bytes]:
        """The stream to its main process; to be opened before it starts."""
        return await self.http.hijack(f"/containers/{self.name}/attach", stream=1, stdin=1, stdout=1, stderr=1)

    async def start(self) -> None:
        """Start its main process."""
        reply = await completed(self.http.call("POST", f"/containers/{self.name}/start"))
        if not reply.ok:
            raise self._refused("start", reply)

    async def remove(self) -> None:
        """Kill it and wait until it is gone; fine if it is already."""
        place = f"/containers/{self.name}"
        found = await self.http.call("GET", f"{place}/json")
        if found.status == _ABSENT:
            return
        if found.ok and found.json()["State"]["Status"] != "created":
            # The engine removes it by itself, after it has unmounted everything: a removal by force would overtake that.
            await self.http.call("POST", f"{place}/kill", signal="KILL")
            with suppress(TimeoutError):
                async with asyncio.timeout(_OWN_REMOVAL_S):
                    await self.http.call("POST", f"{place}/wait", condition="removed")
        await self.remove_by_force()

    async def remove_by_force(self, *, wait: bool = True) -> None:
        """The same for one that nobody waits for any more: whatever state it is in. `wait`: for a removal that is under way."""
        place = f"/containers/{self.name}"
        reply = await self.http.call("DELETE", place, force=1, v=1)
        if reply.ok or reply.status == _ABSENT:
            return

        async def gone() -> bool | None:
            return True if (await self.http.call("GET", f"{place}/json")).status == _ABSENT else None

        if await poll(gone, deadline_s=_REMOVAL_S if wait else 0) is None:
            raise DriverError(
                f"cannot remove it: {reply.message}", driver=self.driver, step="destroy", sandbox=self.name
            )

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """An `Execute`: exec create, start and inspect."""
        call = {
            "Cmd": list(wanted.argv),
            "Env": [f"{name}={value}" for name, value in wanted.env.items()],
            "WorkingDir": wanted.cwd or "",
            "User": wanted.user or "",
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
        }
        made = await self.http.call("POST", f"/containers/{self.name}/exec", call)
        if not made.ok:
            if is_user_refusal(made.message):
                return ExecEnd(exit_code=126, refusal=made.message)
            raise SandboxLost(f"its container is gone: {made.message}", driver=self.driver, sandbox=self.name)
        number = made.json()["Id"]
        try:
            first = await self._stream(number, wanted, sink)
        except DriverError as error:
            if is_refusal(error.message):
                return ExecEnd(exit_code=126, refusal=error.message)
            raise SandboxLost(
                f"its container is gone: {error.message}", driver=self.driver, sandbox=self.name
            ) from error
        reply = await self.http.call("GET", f"/exec/{number}/json")
        found = reply.json() if reply.ok else {}
        code = found.get("ExitCode")
        if code is None:
            raise SandboxLost("its container ended", driver=self.driver, sandbox=self.name)
        # A process that never was has no pid (podman: none has, afterwards), and its output is the engine's explanation.
        said = first.decode(errors="replace") if found.get("Pid") == 0 and code in _NOT_STARTED else ""
        return ExecEnd(exit_code=code, refusal=said if is_refusal(said) else None)

    async def _stream(self, number: str, wanted: ExecCall, sink: Sink) -> bytes:
        """Feed and drain a started exec; gives the beginning of its output."""
        connection, early = await self.http.hijack(f"/exec/{number}/start", {"Detach": False, "Tty": False})
        pieces: list[tuple[int, bytes]] = []
        apart = Demultiplexer(lambda stream, data: pieces.append((stream, bytes(data))))
        loop = asyncio.get_running_loop()
        feeder = asyncio.ensure_future(feed(connection, wanted))
        first = b""
        try:
            while True:
                apart.feed(early)
                for stream, data in pieces:
                    first = (first + data)[:_FIRST]
                    await sink.add(stream, data)
                pieces.clear()
                early = await loop.sock_recv(connection, PIECE)
                if not early:
                    break
        except ConnectionError:
            pass  # the exit code tells whether that matters
        finally:
            feeder.cancel()
            await asyncio.wait({feeder})
            connection.close()
        return first

    def _refused(self, verb: str, reply: Reply) -> Exception:
        said = reply.message
        if reply.status == _ABSENT and "image" in said.lower():
            return Misuse(said, field="image", driver=self.driver)
        if is_user_refusal(said):
            return Misuse(said, field="user", driver=self.driver)
        if "no space left" in said.lower() or "cannot allocate memory" in said.lower():
            return Saturated(said, driver=self.driver, step="create")
        return DriverError(f"the engine refused to {verb} a container: {said}", driver=self.driver, step="create")
