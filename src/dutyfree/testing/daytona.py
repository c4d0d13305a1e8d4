"""A server that speaks Daytona's wire format on loopback, for the vendor's own SDK: its sandboxes are those of `native`.

    with daytona_server() as address: …          what $DAYTONA_API_URL takes; the key is `KEY`

It really runs what it is told, in a process of its own. What it knows of the vendor is what the SDK sends and the vendor's
open sources show: the sandbox API below `/api`, the agent's (`toolbox`) below another address, which each sandbox names.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import BodyPartReader, web

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError
from dutyfree.core.spec import Spec
from dutyfree.substrates.registry import connect
from dutyfree.testing.daemons import detached, end, wait_for
from dutyfree.testing.registry import free_port

KEY = "dtn_0123456789abcdef0123456789abcdef"
"""The one key that is let in."""

IMAGE = "debian:12-slim"
"""The one image that can be built on."""

SNAPSHOT = "daytona-small"
"""The one snapshot beside the default."""

_PAGE = 2
_LARGEST_BODY = 1 << 30
_DEFAULT_EXEC_S = 360
_OUTPUT_LIMIT = 1 << 30

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(kw_only=True, slots=True)
class _Held:
    """One sandbox, and what was asked for it."""

    id: str
    asked: dict[str, Any]
    box: Sandbox
    ttl_minutes: int
    activity: int = 0
    """How often its idleness was set back."""
    clock: asyncio.TimerHandle | None = None


class DaytonaServer:
    """The API over one substrate."""

    def __init__(self, substrate: Substrate) -> None:
        self._substrate = substrate
        self._held: dict[str, _Held] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def application(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=_LARGEST_BODY, middlewares=[_guarded])
        one, inside = "/api/sandbox/{one}", "/toolbox/{one}"
        app.add_routes(
            [
                web.post("/api/sandbox", self._create),
                web.get("/api/sandbox", self._list),
                web.get(one, self._show),
                web.delete(one, self._delete),
                web.post(f"{one}/ttl/{{minutes}}", self._set_ttl),
                web.post(f"{one}/last-activity", self._refresh),
                web.post(f"{inside}/process/execute", self._execute),
                web.post(f"{inside}/files/bulk-upload", self._upload),
            ]
        )
        return app

    async def _create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        built = re.match(r"FROM (\S+)", asked.get("buildInfo", {}).get("dockerfileContent", ""))
        if built and built[1] != IMAGE:
            return _refusal(400, f"Image {built[1]} could not be pulled", "BAD_REQUEST")
        if asked.get("snapshot") not in (None, SNAPSHOT):
            return _refusal(404, f"Snapshot {asked['snapshot']} not found", "NOT_FOUND")
        if any(held.asked["name"] == asked["name"] for held in self._held.values()):
            return _refusal(409, f"Sandbox with name {asked['name']} already exists", "CONFLICT")
        box = await self._substrate.create(Spec(env=asked.get("env") or {}))
        held = _Held(id=str(uuid.uuid4()), asked=asked, box=box, ttl_minutes=0)
        self._held[held.id] = held
        self._wind(held, asked.get("ttlMinutes", 0))
        return web.json_response(self._shown(held, request, "creating"))

    async def _list(self, request: web.Request) -> web.Response:
        prefix = request.query.get("name", "")
        found = [held for held in self._held.values() if held.asked["name"].startswith(prefix)]
        first = int(request.query.get("cursor", "0"))
        items = [self._shown(held, request, "started") for held in found[first : first + _PAGE]]
        cursor = str(first + _PAGE) if first + _PAGE < len(found) else None
        return web.json_response({"items": items, "nextCursor": cursor})

    async def _show(self, request: web.Request) -> web.Response:
        held = self._find(request)
        return web.json_response(self._shown(held, request, "started"))

    async def _delete(self, request: web.Request) -> web.Response:
        held = self._find(request)
        await self._end(held)
        return web.json_response(self._shown(held, request, "destroying"))

    async def _set_ttl(self, request: web.Request) -> web.Response:
        held = self._find(request)
        self._wind(held, int(request.match_info["minutes"]))
        return web.json_response(self._shown(held, request, "started"))

    async def _refresh(self, request: web.Request) -> web.Response:
        self._find(request).activity += 1
        return web.Response(status=200)

    async def _execute(self, request: web.Request) -> web.Response:
        """The command is the standard input of a shell; both outputs come back as one text, once it has ended."""
        held = self._find(request)
        asked = await request.json()
        outcome = await held.box.run(
            ["bash"],
            stdin=asked["command"].encode(),
            cwd=asked.get("cwd"),
            env=asked.get("envs") or {},
            timeout_s=asked.get("timeout") or _DEFAULT_EXEC_S,
            merge_stderr=True,
            output_limit_bytes=_OUTPUT_LIMIT,
            background=True,
        )
        if outcome.ending == "timeout":
            return _refusal(408, "command execution timeout", "PROCESS_EXECUTION_TIMEOUT", "DAYTONA_DAEMON")
        code = -1 if outcome.exit_code is None else outcome.exit_code
        return web.json_response({"exitCode": code, "result": outcome.stdout.decode(errors="replace")})

    async def _upload(self, request: web.Request) -> web.Response:
        held = self._find(request)
        path = ""
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                return _refusal(400, "nested parts", "BAD_REQUEST", "DAYTONA_DAEMON")
            if part.name == "files[0].path":
                path = await part.text()
            else:
                await held.box.write(path, bytes(await part.read()))
        return web.Response(status=200)

    def _find(self, request: web.Request) -> _Held:
        wanted = request.match_info["one"]
        for held in self._held.values():
            if wanted in (held.id, held.asked["name"]):
                return held
        raise _gone(wanted)

    def _wind(self, held: _Held, ttl_minutes: int) -> None:
        """Set the clock of its life."""
        if held.clock is not None:
            held.clock.cancel()
        held.ttl_minutes = ttl_minutes
        if ttl_minutes:
            held.clock = asyncio.get_running_loop().call_later(60 * ttl_minutes, self._expire, held)

    def _expire(self, held: _Held) -> None:
        task = asyncio.ensure_future(self._end(held))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _end(self, held: _Held) -> None:
        self._held.pop(held.id, None)
        if held.clock is not None:
            held.clock.cancel()
        await held.box.destroy()

    def _shown(self, held: _Held, request: web.Request, state: str) -> dict[str, Any]:
        asked = held.asked
        same = ("name", "labels", "networkBlockAll", "autoStopInterval", "autoDeleteInterval")
        return {
            **{name: asked[name] for name in same},
            "id": held.id,
            "env": asked.get("env") or {},
            "organizationId": "org",
            "user": "root",
            "public": False,
            "kvm": False,
            "target": asked.get("target", "us"),
            "cpu": asked.get("cpu", 1),
            "gpu": 0,
            "memory": asked.get("memory", 1),
            "disk": asked.get("disk", 3),
            "snapshot": asked.get("snapshot"),
            "state": state,
            "toolboxProxyUrl": f"http://{request.host}/toolbox",
            "ttlMinutes": held.ttl_minutes,
            "activity": held.activity,
        }


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.headers.get("Authorization") != f"Bearer {KEY}":
        # A careless vendor's words: the caller must not repeat them.
        return _refusal(401, f"Invalid credentials: {request.headers.get('Authorization')}", "UNAUTHORIZED")
    try:
        return await handler(request)
    except DutyfreeError as error:
        return _refusal(502, f"the sandbox does not answer: {error.message}", "BAD_GATEWAY", "DAYTONA_PROXY")


def _gone(wanted: str) -> web.HTTPNotFound:
    body = _envelope(404, f"Sandbox with ID or name {wanted} not found", "NOT_FOUND", "DAYTONA_API")
    return web.HTTPNotFound(text=body, content_type="application/json")


def _refusal(status: int, message: str, code: str, source: str = "DAYTONA_API") -> web.Response:
    return web.Response(status=status, text=_envelope(status, message, code, source), content_type="application/json")


def _envelope(status: int, message: str, code: str, source: str) -> str:
    return json.dumps({"statusCode": status, "message": message, "code": code, "source": source})


async def _serve(port: int) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with connect("native") as substrate:
        runner = web.AppRunner(DaytonaServer(substrate).application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await over.wait()
        await runner.cleanup()


@contextmanager
def daytona_server() -> Iterator[str]:
    """The address of a server of one's own."""
    port = free_port()
    home = Path(tempfile.mkdtemp(prefix=f"dutyfree-daytona-{os.getpid()}-"))
    try:
        pid = detached([sys.executable, "-m", __name__, str(port)], home / "log")
        try:
            wait_for(lambda: _answers(port), what="the server", log=home / "log")
            yield f"http://127.0.0.1:{port}/api"
        finally:
            end(pid)
    finally:
        shutil.rmtree(home)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
