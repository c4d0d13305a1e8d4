"""Daytona's wire: its REST API for sandboxes below `/api`, and the agent's (the toolbox) below an address that each names.

Commands are the input of a shell, and are answered when they have ended, with both outputs as one text. There is no
Socket.IO gateway, without which the SDK asks for states. What is not asked by our driver is not there.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import BodyPartReader, web

from dutyfree.core.errors import DutyfreeError, Misuse, SandboxLost
from support.protocol.place import Job, Place, Places
from support.protocol.server import Handler, main

DEFAULT, SNAPSHOT, IMAGE = "default", "some-snapshot", "debian:12-slim"
"""What sandboxes can start from: nothing in particular, a snapshot, an image."""

_PAGE = 2
_LONGEST_BODY = 64 << 20
_DEFAULT_EXEC_S = 360
_SHELL = ["sh", "-c", "exec bash 2>&1"]


@dataclass(kw_only=True, slots=True)
class Held:
    """A place, and what was asked for it."""

    place: Place
    asked: dict[str, Any]
    ttl_minutes: int
    activity: int = 0
    """How often its idleness was set back."""


class Service:
    """One account."""

    def __init__(self, places: Places, key: str) -> None:
        self._places = places
        self._key = key
        self._held: dict[str, Held] = {}

    def application(self) -> web.Application:
        """The routes."""
        made = web.Application(client_max_size=_LONGEST_BODY, middlewares=[self._admit])
        one, inside = "/api/sandbox/{one}", "/toolbox/{one}"
        made.add_routes(
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
        return made

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if given != f"Bearer {self._key}":
            # The vendor may quote what it was given: whoever shows its words must not.
            return _refusal(401, f"Invalid credentials: {given}", "UNAUTHORIZED")
        if "one" not in request.match_info:
            return await handler(request)
        held = self._find(request.match_info["one"])
        if held is None:
            return _refusal(404, f"Sandbox with ID or name {request.match_info['one']} not found", "NOT_FOUND")
        request["held"] = held
        return await handler(request)

    async def _create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if self._find(asked["name"]) is not None:
            return _refusal(409, f"Sandbox with name {asked['name']} already exists", "CONFLICT")
        built = re.match(r"FROM (\S+)", asked.get("buildInfo", {}).get("dockerfileContent", ""))
        image = built[1] if built else asked.get("snapshot") or DEFAULT
        try:
            place = await self._places.open(
                image, asked["labels"], 60 * asked["ttlMinutes"], network=not asked["networkBlockAll"]
            )
        except KeyError:
            return _refusal(400, f"{'Image' if built else 'Snapshot'} {image} not found", "BAD_REQUEST")
        held = self._held[place.id] = Held(place=place, asked=asked, ttl_minutes=asked["ttlMinutes"])
        return web.json_response(_facts(held, request, "creating"))

    async def _list(self, request: web.Request) -> web.Response:
        prefix, first = request.query.get("name", ""), int(request.query.get("cursor", "0"))
        living = [held for held in self._held.values() if held.place.id in self._places.found]
        named = [held for held in living if held.asked["name"].startswith(prefix)]
        items = [_facts(held, request) for held in named[first : first + _PAGE]]
        rest = named[first + _PAGE :]
        return web.json_response({"items": items, "nextCursor": str(first + _PAGE) if rest else None})

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(_facts(request["held"], request))

    async def _delete(self, request: web.Request) -> web.Response:
        held: Held = request["held"]
        await self._places.end(held.place)
        return web.json_response(_facts(held, request, "destroying"))

    async def _set_ttl(self, request: web.Request) -> web.Response:
        held: Held = request["held"]
        held.ttl_minutes = int(request.match_info["minutes"])
        self._places.extend(held.place, 60 * held.ttl_minutes)
        return web.json_response(_facts(held, request))

    async def _refresh(self, request: web.Request) -> web.Response:
        request["held"].activity += 1
        return web.Response()

    async def _execute(self, request: web.Request) -> web.Response:
        asked = await request.json()
        place: Place = request["held"].place
        said = bytearray()
        try:
            job = await place.start(_SHELL, env=asked.get("envs"), cwd=asked.get("cwd"), stdin=True)
            feeding = asyncio.ensure_future(_feed(job, asked["command"].encode()))
            try:
                async with asyncio.timeout(asked.get("timeout") or _DEFAULT_EXEC_S), aclosing(job.pieces()) as pieces:
                    async for _, data in pieces:
                        said += data
                    outcome = await job.wait()
            except TimeoutError:
                await job.kill()
                return _refusal(408, "command execution timeout", "PROCESS_EXECUTION_TIMEOUT", "DAYTONA_DAEMON")
            finally:
                feeding.cancel()
                await asyncio.wait({feeding})
        except Misuse as error:
            return _refusal(400, error.message, "BAD_REQUEST", "DAYTONA_DAEMON")
        except SandboxLost:
            return _refusal(502, "the sandbox does not answer", "BAD_GATEWAY", "DAYTONA_PROXY")
        code = -1 if outcome.exit_code is None else outcome.exit_code
        return web.json_response({"exitCode": code, "result": said.decode(errors="replace")})

    async def _upload(self, request: web.Request) -> web.Response:
        path = ""
        form = await request.multipart()
        while part := await form.next():
            if isinstance(part, BodyPartReader) and part.name == "files[0].path":
                path = await part.text()
            elif isinstance(part, BodyPartReader):
                await request["held"].place.box.write(path, bytes(await part.read()))
        return web.Response()

    def _find(self, wanted: str) -> Held | None:
        """By its id or its name, if it lives."""
        for held in self._held.values():
            if wanted in (held.place.id, held.asked["name"]) and held.place.id in self._places.found:
                return held
        return None


def build(places: Places, key: str) -> web.Application:
    """The server's application."""
    return Service(places, key).application()


async def _feed(job: Job, data: bytes) -> None:
    with suppress(DutyfreeError):  # a shell that has ended reads no more
        await job.feed(data)
        await job.close_input()


def _facts(held: Held, request: web.Request, state: str = "started") -> dict[str, Any]:
    asked = held.asked
    same = ("name", "labels", "networkBlockAll", "autoStopInterval", "autoDeleteInterval")
    return {
        **{name: asked[name] for name in same},
        "id": held.place.id,
        "organizationId": "organization",
        "user": "root",
        "env": asked.get("env", {}),
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


def _refusal(status: int, message: str, code: str, source: str = "DAYTONA_API") -> web.Response:
    envelope = {"statusCode": status, "message": message, "code": code, "source": source}
    return web.Response(status=status, text=json.dumps(envelope), content_type="application/json")


if __name__ == "__main__":
    main(build, (DEFAULT, SNAPSHOT, IMAGE, "bench"))
