"""e2b's wire: its REST API for sandboxes, and envd's Connect RPC for processes and HTTP for files, as the SDK calls them.

Sandboxes are found by the header that the SDK sends. What is not asked by our driver is not there.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import BodyPartReader, web

from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.core.outcome import Outcome
from support.protocol.place import Job, Place, Places
from support.protocol.server import Handler, main

TEMPLATES = ("base", "other-template")
FULL, BROKEN = "full-template", "broken-template"
"""Names for which there is never a place, or only an error that quotes the key."""
ENVD_VERSION = "0.6.2"
CONNECT = "application/connect+json"
_LONGEST_BODY = 64 << 20
_MESSAGE, _END = 0, 2


class Service:
    """One account."""

    def __init__(self, places: Places, key: str) -> None:
        self._places = places
        self._key = key

    def application(self) -> web.Application:
        """The routes."""
        made = web.Application(client_max_size=_LONGEST_BODY, middlewares=[self._admit])
        made.add_routes(
            [
                web.post("/v2/sandboxes", self._create),
                web.get("/v2/sandboxes", self._list),
                web.delete("/sandboxes/{id}", self._kill),
                web.post("/sandboxes/{id}/timeout", self._timeout),
                web.get("/health", self._health),
                web.post("/files", self._write),
                web.post("/process.Process/Start", self._start),
                web.post("/process.Process/SendSignal", self._signal),
            ]
        )
        return made

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if "sandboxes" not in request.path:
            return await self._inside(request, handler)
        given = request.headers.get("X-API-KEY", "")
        if given != self._key:
            # The vendor may quote what it was given: whoever shows its words must not.
            return _refusal(401, f"the key {given} is not valid")
        return await handler(request)

    async def _inside(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        place = self._places.found.get(request.headers.get("E2b-Sandbox-Id", ""))
        if place is None:
            return _refusal(502, "The sandbox was not found")
        if request.headers.get("X-Access-Token") != place.token:
            return _refusal(401, "access token is not valid")
        request["place"] = place
        return await handler(request)

    async def _create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if asked["templateID"] == FULL:
            return _refusal(429, "you have reached the maximum number of sandboxes")
        if asked["templateID"] == BROKEN:
            return _refusal(500, f"cannot start a sandbox for {self._key}")
        try:
            place = await self._places.open(
                asked["templateID"],
                asked.get("metadata", {}),
                asked.get("timeout", 300),
                network=asked.get("allow_internet_access", True),
            )
        except KeyError as error:
            return _refusal(404, f"template {error} not found")
        return web.json_response({**_facts(place), "envdAccessToken": place.token}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        wanted = {unquote(name): unquote(value) for name, value in parse_qsl(request.query.get("metadata", ""))}
        found = [place for place in self._places.found.values() if wanted.items() <= place.marks.items()]
        return web.json_response([_details(place) for place in found])

    async def _kill(self, request: web.Request) -> web.Response:
        place = self._places.found.get(request.match_info["id"])
        if place is None:
            return _refusal(404, "sandbox not found")
        await self._places.end(place)
        return web.Response(status=204)

    async def _timeout(self, request: web.Request) -> web.Response:
        place = self._places.found.get(request.match_info["id"])
        if place is None:
            return _refusal(404, "sandbox not found")
        self._places.extend(place, (await request.json())["timeout"])
        return web.Response(status=204)

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.Response(status=204)

    async def _write(self, request: web.Request) -> web.Response:
        path = request.query["path"]
        form = await request.multipart()
        while part := await form.next():
            if isinstance(part, BodyPartReader) and part.name == "file":
                await request["place"].box.write(path, bytes(await part.read()))
        return web.json_response([{"path": path, "name": path.rpartition("/")[2], "type": "file"}])

    async def _start(self, request: web.Request) -> web.StreamResponse:
        place: Place = request["place"]
        asked = json.loads((await request.read())[5:])
        wanted = asked["process"]
        reply = web.StreamResponse(headers={"Content-Type": CONNECT})
        await reply.prepare(request)
        try:
            job = await place.start(
                [wanted["cmd"], *wanted.get("args", [])],
                env=wanted.get("envs"),
                cwd=wanted.get("cwd"),
                user=_user(request),
                stdin=asked.get("stdin", True),
            )
            await _tell(reply, job)
        except Misuse as error:
            code = "unauthenticated" if error.field == "user" else "invalid_argument"
            said = f"invalid username: {_user(request)!r}" if error.field == "user" else error.message
            await _send(reply, {"error": {"code": code, "message": said}}, _END)
        except SandboxLost:
            said = "the connection to the sandbox ended before the stream completed"
            await _send(reply, {"error": {"code": "unavailable", "message": said}}, _END)
        else:
            await _send(reply, {}, _END)
        await reply.write_eof()
        return reply

    async def _signal(self, request: web.Request) -> web.Response:
        job = request["place"].jobs.get((await request.json())["process"]["pid"])
        if job is None:
            return web.json_response({"code": "not_found", "message": "no such process"}, status=404)
        await job.kill()
        return web.json_response({})


def build(places: Places, key: str) -> web.Application:
    """The server's application."""
    return Service(places, key).application()


async def _tell(reply: web.StreamResponse, job: Job) -> None:
    await _event(reply, {"start": {"pid": job.number}})
    async with aclosing(job.pieces()) as pieces:
        async for stream, data in pieces:
            await _event(reply, {"data": {stream: base64.b64encode(data).decode()}})
    await _event(reply, {"end": _ended(await job.wait())})


def _ended(outcome: Outcome) -> dict[str, Any]:
    if outcome.ending == "exit":
        return {"exitCode": outcome.exit_code, "exited": True, "status": f"exit status {outcome.exit_code}"}
    return {
        "exitCode": -1,
        "exited": False,
        "status": f"signal: {outcome.signal}",
        "error": f"signal: {outcome.signal}",
    }


async def _event(reply: web.StreamResponse, event: Mapping[str, object]) -> None:
    await _send(reply, {"event": event}, _MESSAGE)


async def _send(reply: web.StreamResponse, message: Mapping[str, object], flags: int) -> None:
    body = json.dumps(message).encode()
    await reply.write(struct.pack(">BI", flags, len(body)) + body)


def _user(request: web.Request) -> str | None:
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    return base64.b64decode(value).decode().rstrip(":") if scheme == "Basic" else None


def _facts(place: Place) -> dict[str, Any]:
    return {"templateID": place.image, "sandboxID": place.id, "clientID": "protocol", "envdVersion": ENVD_VERSION}


def _details(place: Place) -> dict[str, Any]:
    times = {"startedAt": place.started_s, "endAt": place.ends_s}
    return {
        **_facts(place),
        **{name: datetime.fromtimestamp(at_s, UTC).isoformat() for name, at_s in times.items()},
        "cpuCount": 1,
        "memoryMB": 512,
        "diskSizeMB": 1024,
        "state": "running",
        "metadata": dict(place.marks),
    }


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"code": status, "message": message}, status=status)


if __name__ == "__main__":
    main(build, TEMPLATES)
