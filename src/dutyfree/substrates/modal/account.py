"""Modal's API, as far as it is needed: an app, images of registries, sandboxes started, found by their tags and ended.

The SDK runs on a thread and a loop of its own, which it keeps as long as the process lives; its calls are awaited
here. To a vendor that does not answer it tries to connect for a minute, which is its own affair: given up earlier, it
would go on by itself.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpclib
import modal
from grpclib.exceptions import StreamTerminatedError
from modal import exception

from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unavailable
from dutyfree.core.pending import finish
from dutyfree.core.spec import Spec
from dutyfree.driver.owner import owner_mark
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.substrate import NAME_LABEL
from dutyfree.substrates.modal.machine import DRIVER, ModalMachine, keeper

APP = "dutyfree"
IMAGE = "python:3.12"
LONGEST_S = 86_400
"""The vendor's own: no sandbox lives longer."""

MACHINE_LABEL = "dutyfree.machine"
"""Which machine the owner is a process of: the vendor finds sandboxes by whole tags only."""

_VENDORS_URL = "https://api.modal.com"
_MIB = 1 << 20
_ERRORS = (exception.Error, grpclib.GRPCError, StreamTerminatedError, OSError, TimeoutError)
_REFUSED = (exception.AuthError, exception.PermissionDeniedError)
_GONE = (exception.NotFoundError, exception.ConflictError, exception.ClientClosed, exception.SandboxTerminatedError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Image and region of the sandboxes."""

    image: str
    """That `host` stands for."""
    region: str | None


class Account:
    """A `hosted.vendor.Vendor`. Made by `open_account`."""

    def __init__(
        self, client: modal.Client, app: modal.App, where: Where, boundary: Boundary, secrets: Sequence[Credential]
    ) -> None:
        url = os.environ.get("MODAL_SERVER_URL", _VENDORS_URL)
        self.version = f"modal {modal.__version__}" + ("" if url == _VENDORS_URL else f" at {url}")
        self._client = client
        self._app = app
        self._where = where
        self._boundary = boundary
        self._of_image = Boundary(_ERRORS, _about_image, secrets)
        self._of_machine = Boundary(_ERRORS, _about_machine, secrets)
        self._images: dict[str, asyncio.Task[modal.Image]] = {}
        """Built, or on their way."""

    async def start(self, spec: Spec, marks: Mapping[str, str], ttl_s: float) -> ModalMachine:
        """Start a sandbox in which commands run."""
        image = await self._image(self._where.image if spec.image == "host" else spec.image)
        longest_s = LONGEST_S if spec.lifetime_s is None else min(LONGEST_S, math.ceil(spec.lifetime_s))
        sandbox = await self._boundary.cross(
            modal.Sandbox.create.aio(
                *keeper(ttl_s),
                app=self._app,
                image=image,
                name=marks[NAME_LABEL],
                tags={**marks, MACHINE_LABEL: _machine()},
                timeout=longest_s,
                region=self._where.region,
                block_network=spec.network == "none",
                client=self._client,
                **_resources(spec),
            )
        )
        machine = ModalMachine(sandbox, self._of_machine)
        try:
            await machine.greet()
        except BaseException:
            await finish(machine.end())
            raise
        return machine

    async def marked(self, key: str) -> Mapping[str, str]:
        """Those whose owners are processes of this machine: the others are nobody's to judge here."""
        return await self._boundary.cross(self._marked(key))

    async def end(self, machine_id: str) -> None:
        """End a sandbox by its id."""
        with suppress(SandboxLost):
            sandbox = await self._of_machine.cross(modal.Sandbox.from_id.aio(machine_id, client=self._client))
            await ModalMachine(sandbox, self._of_machine).end()

    async def close(self) -> None:
        """Drop the connection."""
        building = [image for image in self._images.values() if not image.done()]
        for image in building:
            image.cancel()
        if building:
            await asyncio.wait(building)
        await self._boundary.cross(_closed(self._client))

    async def _marked(self, key: str) -> dict[str, str]:
        found = {}
        tags = {MACHINE_LABEL: _machine()}
        async for sandbox in modal.Sandbox.list.aio(app_id=self._app.app_id, tags=tags, client=self._client):
            with suppress(exception.NotFoundError):  # it has just ended
                mark = (await sandbox.get_tags.aio()).get(key)
                if mark is not None:
                    found[sandbox.object_id] = mark
        return found

    async def _image(self, name: str) -> modal.Image:
        """One of a registry, built once for all who ask for it; `im-…`: one that the vendor has."""
        if name.startswith("/"):
            raise Misuse(f"{name!r} is a path of this machine: name one of a registry", field="image", driver=DRIVER)
        building = self._images.get(name)
        if building is None or (building.done() and (building.cancelled() or building.exception() is not None)):
            image = modal.Image.from_id(name) if name.startswith("im-") else modal.Image.from_registry(name)
            building = self._images[name] = asyncio.create_task(self._of_image.cross(image.build.aio(self._app)))
        return await asyncio.shield(building)


async def open_account(options: Mapping[str, str], credentials: Mapping[str, Credential]) -> Account:
    """Reach the vendor, with an app for our sandboxes."""
    where = Where(image=options.get("image", IMAGE), region=options.get("region"))
    secrets = tuple(credentials.values())
    boundary = Boundary(_ERRORS, _classify, secrets)
    token = (credentials["MODAL_TOKEN_ID"].reveal(), credentials["MODAL_TOKEN_SECRET"].reveal())
    client = await boundary.cross(modal.Client.from_credentials.aio(*token))
    try:
        lookup = modal.App.lookup.aio(
            options.get("app", APP),
            client=client,
            environment_name=options.get("environment"),
            create_if_missing=True,
        )
        return Account(client, await boundary.cross(lookup), where, boundary, secrets)
    except BaseException:
        await finish(_closed(client))
        raise


async def _closed(client: modal.Client) -> None:
    await client.__aexit__(None, None, None)  # type: ignore[no-untyped-call] # the SDK's own


def _resources(spec: Spec) -> dict[str, Any]:
    """A request is the limit too: the vendor guarantees what it grants."""
    wanted: dict[str, Any] = {}
    if spec.limits.cpus is not None:
        wanted["cpu"] = (spec.limits.cpus, spec.limits.cpus)
    if spec.limits.memory_bytes is not None:
        size = spec.limits.memory_bytes // _MIB
        wanted["memory"] = (size, size)
    return wanted


def _machine() -> str:
    """The part of a mark that names this machine."""
    return ".".join(owner_mark().split(".")[:2])


def _classify(error: BaseException, words: str) -> DutyfreeError:
    if isinstance(error, _REFUSED):
        return Unavailable(words, enable="export MODAL_TOKEN_ID=… MODAL_TOKEN_SECRET=…", driver=DRIVER)
    if isinstance(error, exception.ResourceExhaustedError):
        return Saturated(words, driver=DRIVER)
    if isinstance(error, exception.ConnectionError | exception.ServiceError | exception.TimeoutError | OSError):
        return Unavailable(f"the vendor does not answer: {words}", driver=DRIVER)
    return DriverError(words, driver=DRIVER)


def _about_image(error: BaseException, words: str) -> DutyfreeError:
    """Nothing in it is the vendor's fault: a name that no registry has, or that is none."""
    if isinstance(error, exception.ImageBuildError | exception.NotFoundError | exception.InvalidError):
        return Misuse(words, field="image", driver=DRIVER)
    return _classify(error, words)


def _about_machine(error: BaseException, words: str) -> DutyfreeError:
    if isinstance(error, _GONE):
        return SandboxLost(f"the sandbox is gone: {words}", driver=DRIVER)
    return _classify(error, words)
