"""A small server that speaks Modal's own protocol on loopback, for the vendor's real client; commands really run.

    with modal_server({"debian:12": "host"}) as server:
        os.environ |= server.environ        # where it is, and the credentials it takes

What stands for a container is a sandbox of the `native` substrate, with the limits, the network and the lifetime that
were asked for. It serves what the driver calls and refuses every other call, so a driver that begins to depend on more is
seen at once. It knows the vendor's messages only, and nothing of the driver.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from dutyfree.testing.modal_container import Container, Router
from dutyfree.testing.sharing import started_executor

Call = Any
"""A grpclib stream: its types say less than its names."""

_HOUR_S = 3600


class ControlPlane:
    """Apps, images and sandboxes of one account."""

    def __init__(self, images: Mapping[str, str]) -> None:
        self.token = (f"ak-{secrets.token_hex(11)}", f"as-{secrets.token_hex(11)}")
        self.images = images
        """Names a registry would know, and the image of ours that stands for each."""
        self.containers: dict[str, Container] = {}
        """Those that live, by the sandbox's id."""
        self.made: list[Container] = []
        """All there ever were."""
        self.calls: list[str] = []
        self.url = ""
        self.jwt = _jwt()
        self._apps: dict[str, str] = {}
        self._built: dict[str, str] = {}

    async def ClientHello(self, stream: Call) -> None:  # noqa: N802 - the protocol's own names
        await self._received(stream)
        await stream.send_message(api_pb2.ClientHelloResponse())

    async def AuthTokenGet(self, stream: Call) -> None:  # noqa: N802
        await self._received(stream)
        await stream.send_message(api_pb2.AuthTokenGetResponse(token=self.jwt))

    async def EnvironmentGetOrCreate(self, stream: Call) -> None:  # noqa: N802
        await self._received(stream)
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        await stream.send_message(api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata))

    async def AppGetOrCreate(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        app = self._apps.setdefault(wanted.app_name, f"ap-{len(self._apps) + 1}")
        await stream.send_message(api_pb2.AppGetOrCreateResponse(app_id=app))

    async def ImageGetOrCreate(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        name = wanted.image.dockerfile_commands[0].removeprefix("FROM ")
        if name in self.images:
            known = f"im-{len(self._built) + 1}"
            image = next((key for key, value in self._built.items() if value == name), known)
            self._built[image] = name
            result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        else:
            image = "im-0"
            result = api_pb2.GenericResult(
                status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exception=f"manifest for {name} not found"
            )
        await stream.send_message(api_pb2.ImageGetOrCreateResponse(image_id=image, result=result))

    async def SandboxCreateV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        tags = {tag.tag_name: tag.tag_value for tag in wanted.tags}
        container = Container(wanted.definition, tags, wanted.app_id, self._forget)
        await container.start(self.images[self._built[wanted.definition.image_id]])
        self.containers[container.id] = container
        self.made.append(container)
        access = api_pb2.CommandRouterAccess(url=self.url, jwt=self.jwt)
        await stream.send_message(
            api_pb2.SandboxCreateV2Response(
                sandbox_id=container.id, task_id=container.task_id, command_router_access=access
            )
        )

    async def SandboxGetCommandRouterAccess(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        self._live(wanted.sandbox_id)
        await stream.send_message(api_pb2.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=self.jwt))

    async def SandboxListV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        asked = {(tag.tag_name, tag.tag_value) for tag in wanted.tags}
        before = wanted.before_timestamp or float("inf")
        found = [
            api_pb2.SandboxInfo(id=one.id, created_at=one.created_at, app_id=one.app_id)
            for one in self.containers.values()
            if one.app_id == wanted.app_id and asked <= set(one.tags.items()) and one.created_at < before
        ]
        found.sort(key=lambda info: -info.created_at)
        await stream.send_message(api_pb2.SandboxListResponse(sandboxes=found))

    async def SandboxTagsGetV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        tags = self._live(wanted.sandbox_id).tags
        listed = [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]
        await stream.send_message(api_pb2.SandboxTagsGetResponse(tags=listed))

    async def SandboxTerminateV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        container = self.containers.get(wanted.sandbox_id)
        if container is not None:
            await container.end(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        await stream.send_message(api_pb2.SandboxTerminateResponse())

    async def SandboxWaitV2(self, stream: Call) -> None:  # noqa: N802
        wanted = await self._received(stream)
        (container,) = [one for one in self.made if one.id == wanted.sandbox_id]
        result = await container.result(wanted.timeout)
        await stream.send_message(api_pb2.SandboxWaitResponse(result=result))

    async def close(self) -> None:
        for container in list(self.containers.values()):
            await container.end(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)

    async def _received(self, stream: Call) -> Any:
        """The request of somebody who has the right to ask."""
        said = (stream.metadata.get("x-modal-token-id"), stream.metadata.get("x-modal-token-secret"))
        if said != self.token:
            raise GRPCError(Status.UNAUTHENTICATED, f"Token {said[0]} with secret {said[1]} is not valid")
        message = await stream.recv_message()
        self.calls.append(type(message).__name__)
        return message

    def _live(self, sandbox: str) -> Container:
        if sandbox not in self.containers:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {sandbox} not found")
        return self.containers[sandbox]

    def _forget(self, container: Container) -> None:
        self.containers.pop(container.id, None)


class ModalServer:
    """What a test sees of it."""

    def __init__(self, plane: ControlPlane, ask: Callable[[Any], Any]) -> None:
        self.plane = plane
        self._ask = ask

    @property
    def environ(self) -> dict[str, str]:
        """What the vendor's client reads."""
        names = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
        return {"MODAL_SERVER_URL": self.plane.url, **dict(zip(names, self.plane.token, strict=True))}

    @property
    def live(self) -> list[Container]:
        """The sandboxes there are."""
        return list(self.plane.containers.values())

    def end(self, container: Container) -> None:
        """As the vendor may, at any time."""
        self._ask(container.end(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED))


@contextmanager
def modal_server(images: Mapping[str, str]) -> Iterator[ModalServer]:
    """Serve until the block ends, on a loop and a thread of its own."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(started_executor())
    thread = threading.Thread(target=loop.run_forever, name="modal-server")
    thread.start()

    def ask(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    plane = ControlPlane(images)
    try:
        server = ask(_serve(plane))
        try:
            yield ModalServer(plane, ask)
        finally:
            ask(_stop(server, plane))
    finally:
        ask(loop.shutdown_default_executor())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(plane: ControlPlane) -> Server:
    server = Server([_service(plane, ModalClientBase), _service(Router(plane.made, plane.jwt), TaskCommandRouterBase)])
    await server.start("127.0.0.1", 0)
    port = cast("Any", server)._server.sockets[0].getsockname()[1]  # noqa: SLF001 - it does not tell which port it got
    plane.url = f"http://127.0.0.1:{port}"
    return server


async def _stop(server: Server, plane: ControlPlane) -> None:
    await plane.close()
    server.close()
    await server.wait_closed()


def _service(ours: object, kind: type) -> Any:
    """The vendor's service, with our calls; every other is refused by its name."""

    def refusal(name: str) -> Any:
        async def refuse(_self: object, _stream: Call) -> None:
            raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not served")

        return refuse

    names = kind.__abstractmethods__  # type: ignore[attr-defined] # of every abstract class
    calls = {name: getattr(ours, name, None) for name in names}
    bound = {name: _delegated(call) if call else refusal(name) for name, call in calls.items()}
    return type(kind.__name__, (kind,), bound)()


def _delegated(call: Any) -> Any:
    async def delegate(_self: object, stream: Call) -> None:
        await call(stream)

    return delegate


def _jwt() -> str:
    """As the client reads it: three parts, of which the second tells when it ends."""
    parts: tuple[dict[str, object], ...] = ({"alg": "none"}, {"exp": time.time() + _HOUR_S}, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
