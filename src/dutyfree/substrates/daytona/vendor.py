"""One account at Daytona's, by the vendor's SDK: starts, finds and ends sandboxes. The only module that knows its errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import aiohttp
from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaAuthenticationError,
    DaytonaConfig,
    DaytonaConnectionError,
    DaytonaError,
    DaytonaForbiddenError,
    DaytonaNotFoundError,
    DaytonaRateLimitError,
    ListSandboxesQuery,
    Resources,
)

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unavailable, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.substrates.daytona.machine import END_S, DaytonaMachine, minutes
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.substrate import NAME_LABEL

ADDRESS_VARIABLE = "DAYTONA_API_URL"
START_S = 600.0
"""An image is built when it is first asked for."""

_DEFAULT_IMAGE = "host"
_GIB = 1 << 30
_BUSY = 503
_NAME_PREFIX = "dutyfree-"


class Daytona:
    """A `hosted.vendor.Vendor`."""

    def __init__(self, key: Credential, target: str | None) -> None:
        address = os.environ.get(ADDRESS_VARIABLE)
        self.version = f"daytona {version('daytona')}" + (f" at {address}" if address else "")
        self._boundary = Boundary((DaytonaError, aiohttp.ClientError), classify, [key])
        config = DaytonaConfig(api_key=key.reveal(), api_url=address, target=target, connection_pool_maxsize=None)
        try:
            self._client = AsyncDaytona(config)
        except DaytonaError as error:
            failure = self._boundary.translate(error)
        else:
            return
        raise failure

    async def start(self, spec: Spec, marks: Mapping[str, str], ttl_s: float) -> DaytonaMachine:
        """Create one of the sandbox's own name; what failed on its way is deleted by that."""
        wanted = wanted_sandbox(spec, marks, ttl_s)
        try:
            sandbox = await self._boundary.cross(self._client.create(wanted, timeout=START_S))
        except DutyfreeError as error:
            with suppress(DutyfreeError):  # the first error is the one to be told; the vendor's clock runs in any case
                await self.end(marks[NAME_LABEL])
            if _is_about(error, spec.image):
                raise Misuse(error.message, field="image", driver="daytona") from None
            raise
        return DaytonaMachine(sandbox, self._boundary)

    async def marked(self, key: str) -> Mapping[str, str]:
        """Found by the names that sandboxes of ours have."""
        return await self._boundary.cross(self._marked(key))

    async def _marked(self, key: str) -> dict[str, str]:
        found = self._client.list(ListSandboxesQuery(name=_NAME_PREFIX))
        return {one.id: one.labels[key] async for one in found if key in one.labels}

    async def end(self, machine_id: str) -> None:
        """By its id, or its name."""
        with suppress(SandboxLost):
            sandbox = await self._boundary.cross(self._client.get(machine_id))
            await self._boundary.cross(sandbox.delete(END_S, wait=True))

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()  # type: ignore[no-untyped-call]


def wanted_sandbox(
    spec: Spec, marks: Mapping[str, str], ttl_s: float
) -> CreateSandboxFromImageParams | CreateSandboxFromSnapshotParams:
    """Build the vendor's request. The sandbox ends after `ttl_s`, or that long idle, and is then deleted."""
    fields: dict[str, Any] = {
        "name": marks[NAME_LABEL],
        "labels": dict(marks),
        "network_block_all": spec.network == "none",
        "ttl_minutes": minutes(ttl_s),
        "auto_stop_interval": minutes(ttl_s),
        "auto_delete_interval": 0,
    }
    if spec.image.startswith("/"):
        raise Misuse(f"{spec.image!r} is a path of this machine: name an image", field="image", driver="daytona")
    resources = _resources(spec.limits)
    if spec.image == _DEFAULT_IMAGE or spec.image.startswith(SNAPSHOT_PREFIX):
        if resources is not None:
            what = "limits come with an image: a snapshot has its own, which the vendor does not change"
            raise Unsupported(what, driver="daytona")
        name = spec.image.removeprefix(SNAPSHOT_PREFIX) if spec.image != _DEFAULT_IMAGE else None
        return CreateSandboxFromSnapshotParams(snapshot=name, **fields)
    return CreateSandboxFromImageParams(image=spec.image, resources=resources, **fields)


def _is_about(error: DutyfreeError, image: str) -> bool:
    """The vendor's words name the image: it cannot be had."""
    asked = image != _DEFAULT_IMAGE and isinstance(error, DriverError | SandboxLost)
    return asked and image.removeprefix(SNAPSHOT_PREFIX) in error.message


def _resources(limits: Limits) -> Resources | None:
    if not limits.given():
        return None
    return Resources(
        cpu=_whole("cpus", limits.cpus, 1, "processors"),
        memory=_whole("memory_bytes", limits.memory_bytes, _GIB, "GiB"),
        disk=_whole("disk_bytes", limits.disk_bytes, _GIB, "GiB"),
    )


def _whole(name: str, value: float | None, unit: int, of: str) -> int | None:
    if value is None:
        return None
    if value % unit:
        raise Unsupported(f"limits.{name} is enforced in whole {of} only, and {value:g} is none", driver="daytona")
    return int(value) // unit


def classify(error: BaseException, words: str) -> DutyfreeError:
    """The one classification of the vendor's errors."""
    if isinstance(error, DaytonaAuthenticationError | DaytonaForbiddenError):
        return Unavailable(words, enable="export DAYTONA_API_KEY=…", driver="daytona")
    if isinstance(error, DaytonaConnectionError | aiohttp.ClientConnectionError):
        return Unavailable(words, driver="daytona")
    if isinstance(error, DaytonaNotFoundError):
        return SandboxLost(words, driver="daytona")
    if isinstance(error, DaytonaRateLimitError) or getattr(error, "status_code", None) == _BUSY:
        return Saturated(words, retry_after_s=_pause_s(error), driver="daytona")
    return DriverError(words, driver="daytona")


def _pause_s(error: BaseException) -> float:
    """Read the pause that the vendor asks for, if it is in seconds."""
    headers = {name.lower(): value for name, value in getattr(error, "headers", {}).items()}
    said = str(headers.get("retry-after", ""))
    return float(said) if said.isdecimal() else 1.0
