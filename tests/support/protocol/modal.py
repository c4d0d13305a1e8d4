"""Modal's wire: gRPC, by the service definitions that the SDK ships; a control plane, and the router of executed commands.

What is not asked by our driver is refused by its name. The main process of a sandbox is run too, and its end is the sandbox's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from dutyfree.core.errors import SandboxLost
from dutyfree.core.spec import Limits
from support.protocol.modal_router import Router
from support.protocol.place import Job, Place, Places
from support.protocol.server import run

IMAGES = ("debian:12", "python:3.12")
FULL, BROKEN = "full:1", "broken:1"
"""Names for which there is never a place, or only an error that quotes the secret."""

TOKEN_ID = "ak-protocol"
APP = "ap-protocol"

Call = Any
"""A grpclib stream: its types say less than its names."""

_HOUR_S = 3600


class ControlPlane:
    """One account, and its one app."""

    def __init__(self, places: Places, key: str, jwt: str) -> None:
        self._places = places
        self._key = key
        self._jwt = jwt
        self._images: list[str] = []
        self._mains: set[asyncio.Task[None]] = set()
        self.url = ""

    async def AuthTokenGet(self, stream: Call) -> None:  # noqa: N802 - the protocol's own names
        await self._received(stream)
        await stream.send_message(api_pb2.AuthTokenGetResponse(token=self._jwt))

    async def EnvironmentGetOrCreate(self, stream: Call) -> None:  # noqa: N802
        await self._received(stream)
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        await stream.send_message(api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata))

    async def AppGetOrCreate(self, stream: Call) -> None:  # noqa: N802
        await self._received(stream)
        await stream.send_message(api_pb2.AppGetOrCreateResponse(app_id=APP))

    async def ImageGetOrCreate(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        name = wanted.image.dockerfile_commands[0].removeprefix("FROM ")
        if name in (*self._places.images, FULL, BROKEN):
            self._images.append(name)
            result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        else:
            status = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
            result = api_pb2.GenericResult(status=status, exception=f"manifest for {name} not found")
        image = f"im-{len(self._images)}"
        await stream.send_message(api_pb2.ImageGetOrCreateResponse(image_id=image, result=result))

    async def SandboxCreateV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        image = self._images[int(wanted.definition.image_id.removeprefix("im-")) - 1]
        if image == FULL:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "you have reached the maximum number of sandboxes")
        if image == BROKEN:
            raise GRPCError(Status.INVALID_ARGUMENT, f"cannot start a sandbox for {self._key}")
        place = await self._open(image, wanted.definition, {tag.tag_name: tag.tag_value for tag in wanted.tags})
        main = await place.start(list(wanted.definition.entrypoint_args))
        following = asyncio.create_task(self._follow(place, main))
        self._mains.add(following)
        following.add_done_callback(self._mains.discard)
        await stream.send_message(
            api_pb2.SandboxCreateV2Response(
                sandbox_id=f"sb-{place.id}",
                task_id=f"ta-{place.id}V",
                command_router_access=api_pb2.CommandRouterAccess(url=self.url, jwt=self._jwt),
            )
        )

    async def SandboxListV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        asked = {(tag.tag_name, tag.tag_value) for tag in wanted.tags}
        before_s = wanted.before_timestamp or float("inf")
        found = [
            api_pb2.SandboxInfo(id=f"sb-{place.id}", created_at=place.started_s, app_id=APP)
            for place in self._places.found.values()
            if asked <= place.marks.items() and place.started_s < before_s
        ]
        found.sort(key=lambda info: -info.created_at)
        await stream.send_message(api_pb2.SandboxListResponse(sandboxes=found))

    async def SandboxTagsGetV2(self, stream: Call) -> None:  # noqa: N802
        marks = self._found(await self._received(stream)).marks
        tags = [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in marks.items()]
        await stream.send_message(api_pb2.SandboxTagsGetResponse(tags=tags))

    async def SandboxTerminateV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        place = self._places.found.get(wanted.sandbox_id.removeprefix("sb-"))
        if place is not None:
            await self._places.end(place)
        await stream.send_message(api_pb2.SandboxTerminateResponse())

    async def SandboxWaitV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        kinds = api_pb2.GenericResult
        live = wanted.sandbox_id.removeprefix("sb-") in self._places.found
        result = kinds(status=kinds.GENERIC_STATUS_UNSPECIFIED if live else kinds.GENERIC_STATUS_TERMINATED)
        await stream.send_message(api_pb2.SandboxWaitResponse(result=result))

    async def close(self) -> None:
        """After the end of all places, which is the server's business."""
        await asyncio.gather(*self._mains)

    async def _open(self, image: str, wanted: api_pb2.Sandbox, marks: dict[str, str]) -> Place:
        limits = Limits(
            cpus=wanted.resources.milli_cpu_max / 1000 or None,
            memory_bytes=(wanted.resources.memory_mb_max << 20) or None,
        )
        network = wanted.network_access.network_access_type != api_pb2.NetworkAccess.BLOCKED
        return await self._places.open(image, marks, wanted.timeout_secs, network=network, limits=limits)

    async def _follow(self, place: Place, main: Job) -> None:
        with suppress(SandboxLost):
            await main.wait()
        await self._places.end(place)

    async def _received(self, stream: Call) -> Any:
        """The request of somebody who has the right to ask."""
        said = (stream.metadata.get("x-modal-token-id"), stream.metadata.get("x-modal-token-secret"))
        if said != (TOKEN_ID, self._key):
            # The vendor may quote what it was given: whoever shows its words must not.
            raise GRPCError(Status.UNAUTHENTICATED, f"the secret {said[1]} of {said[0]} is not valid")
        return await stream.recv_message()

    def _found(self, wanted: Any) -> Place:
        place = self._places.found.get(wanted.sandbox_id.removeprefix("sb-"))
        if place is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {wanted.sandbox_id} not found")
        return place


@asynccontextmanager
async def listen(places: Places, key: str) -> AsyncIterator[str]:
    """The server, until the block ends; where it is."""
    jwt = _jwt()
    plane = ControlPlane(places, key, jwt)
    server: Any = Server([_service(plane, ModalClientBase), _service(Router(places, jwt), TaskCommandRouterBase)])
    await server.start("127.0.0.1", 0)
    plane.url = f"http://127.0.0.1:{server._server.sockets[0].getsockname()[1]}"
    try:
        yield plane.url
    finally:
        await plane.close()
        server.close()
        await server.wait_closed()


def _service(ours: object, kind: type) -> Any:
    """The vendor's service, with our calls."""

    def served(name: str) -> Any:
        async def serve(_: object, stream: Call) -> None:
            call = getattr(ours, name, None)
            if call is None:
                raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not served")
            await call(stream)

        return serve

    names = kind.__abstractmethods__  # type: ignore[attr-defined] # of every abstract class
    return type(kind.__name__, (kind,), {name: served(name) for name in names})()


def _jwt() -> str:
    """As the SDK reads it: three parts, of which the second tells when it ends."""
    parts: tuple[dict[str, object], ...] = ({"alg": "none"}, {"exp": time.time() + _HOUR_S}, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


if __name__ == "__main__":
    run(listen, IMAGES)
