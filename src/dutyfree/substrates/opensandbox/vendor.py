"""One server, and one of its sandboxes. With `command`, the only module that imports the SDK.

Variables of a spec go with each command and not to the server, which keeps what it is told. The SDK's retries and its
reports of times to the server are turned off: the caller decides what is asked again, and the meter measures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from importlib.metadata import version

import httpx
from opensandbox import Sandbox, SandboxManager
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import (
    InvalidArgumentException,
    SandboxApiException,
    SandboxConnectionException,
    SandboxException,
    SandboxRateLimitException,
    SandboxReadyTimeoutException,
    SandboxTimeoutException,
)
from opensandbox.models.sandboxes import SandboxFilter, SandboxInfo
from opensandbox.transport import RetryPolicy

from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unavailable, Unsupported
from dutyfree.core.pending import finish
from dutyfree.core.spec import Limits, Spec
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.exec_call import ExecCall, ExecEnd, Sink
from dutyfree.driver.program import poll
from dutyfree.image.pack import reference
from dutyfree.image.resolve import BUILD_BENCH, resolve
from dutyfree.image.store import Store
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.opensandbox.address import KEY, NAME, Address
from dutyfree.substrates.opensandbox.command import run_script

_TTL_LEAST_S = 60.0
"""What a server takes when a sandbox is started; it may be set to less afterwards."""
_READY_S = 120.0
_END_S = 30.0
_LOOK_EVERY_S = 0.02
"""How often a new sandbox is asked whether it is ready; by itself the SDK asks five times a second."""
_PAGE = 100
_KEEP_S = 2.0
"""An idle connection is dropped before the server drops it, after 5 s: nothing is asked on one that just ended."""
_REGISTRY = "localhost"
"""Images of our store carry the name of a registry that there is not, so that a server that lacks one asks nobody for it."""


class OpenSandboxVendor:
    """One server."""

    def __init__(self, address: Address, *, proxy: bool = False) -> None:
        self.version = f"{NAME} {version(NAME)} at {address.domain}"
        secrets = [address.key] if address.key else []
        self._boundary = Boundary((SandboxException,), _classify, secrets)
        self._transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(keepalive_expiry=_KEEP_S))
        self._connection = ConnectionConfig(
            domain=address.url,
            protocol=address.url.partition("://")[0],
            api_key=address.key.reveal() if address.key else None,
            transport=self._transport,
            retry_policy=RetryPolicy.disabled(),
            request_timeout=timedelta(seconds=_READY_S),
            use_server_proxy=proxy,
            disable_metrics=True,
        )
        self._manager: SandboxManager | None = None
        self._store = Store.default()
        # The SDK logs every failure with its traceback, which Python prints if nobody has said where logs go.
        _be_quiet(logging.getLogger(NAME))

    async def start(self, spec: Spec, marks: Mapping[str, str], ttl_s: float) -> OpenSandboxMachine:
        """A container of the image; the SDK ends one that does not become ready."""
        image = await asyncio.to_thread(self._image, spec.image)
        sandbox = await self._boundary.cross(
            Sandbox.create(
                image,
                timeout=timedelta(seconds=max(ttl_s, _TTL_LEAST_S)),
                ready_timeout=timedelta(seconds=_READY_S),
                health_check_polling_interval=timedelta(seconds=_LOOK_EVERY_S),
                metadata=dict(marks),
                resource=_resource(spec.limits),
                connection_config=self._connection,
            )
        )
        machine = OpenSandboxMachine(sandbox, self._boundary)
        try:
            if ttl_s < _TTL_LEAST_S:
                await machine.extend(ttl_s)
        except BaseException:
            await finish(machine.end())
            raise
        return machine

    async def marked(self, key: str) -> Mapping[str, str]:
        """By the server's list, page by page."""
        manager = await self._managed()
        found: dict[str, str] = {}
        page = 1
        while True:
            answer = await self._boundary.cross(manager.list_sandbox_infos(SandboxFilter(page=page, page_size=_PAGE)))
            marks = {one.id: (one.metadata or {}).get(key) for one in answer.sandbox_infos}
            found |= {one: mark for one, mark in marks.items() if mark is not None}
            if not answer.pagination.has_next_page:
                return found
            page += 1

    async def end(self, machine_id: str) -> None:
        """By its id."""
        manager = await self._managed()
        await _end(
            self._boundary, lambda: manager.kill_sandbox(machine_id), lambda: manager.get_sandbox_info(machine_id)
        )

    async def close(self) -> None:
        """Drop the connections."""
        self._store.close()
        await self._transport.aclose()

    async def _managed(self) -> SandboxManager:
        if self._manager is None:
            self._manager = await SandboxManager.create(self._connection)
        return self._manager

    def _image(self, name: str) -> str:
        """Name of the image at the server: names that our store does not know are the server's own."""
        if name == "host":
            what = f"image 'host' is this machine's own /usr: use image 'bench', made by `{BUILD_BENCH}`"
            raise Unsupported(what, driver=NAME)
        if name != "bench" and not name.startswith("/") and self._store.named(name) is None:
            return name
        try:
            return f"{_REGISTRY}/{reference(resolve(name, self._store))}"
        except DutyfreeError as error:
            error.driver = NAME
            raise


class OpenSandboxMachine:
    """One sandbox of the server."""

    defaults = ImageDefaults()

    def __init__(self, sandbox: Sandbox, boundary: Boundary) -> None:
        self._sandbox = sandbox
        self._boundary = boundary

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """By `commands.run`; the sandbox itself is asked, and not the server, so a failure may be its end."""
        try:
            ended = await run_script(self._sandbox, self._boundary, wanted, sink)
        except (DriverError, SandboxLost, Unavailable) as error:
            await self._check_alive(error)
            raise
        if ended is None:
            failure = DriverError("the server's answer ended before the command did", driver=NAME, step="exec")
            await self._check_alive(failure)
            raise failure
        return ended

    async def extend(self, ttl_s: float) -> None:
        """By the server's clock."""
        await self._boundary.cross(self._sandbox.renew(timedelta(seconds=ttl_s)))

    async def end(self) -> None:
        """Kill it."""
        await _end(self._boundary, self._sandbox.kill, self._sandbox.get_info)

    async def _check_alive(self, error: DutyfreeError) -> None:
        """Raise `SandboxLost` if the server says that it does not run."""
        info = await self._boundary.cross(self._sandbox.get_info())
        if info.status.state.lower() != "running":
            why = f"the server says that it is {info.status.state}: {error.message}"
            raise SandboxLost(why, driver=NAME) from error


async def _end(
    boundary: Boundary, kill: Callable[[], Awaitable[None]], look: Callable[[], Awaitable[SandboxInfo]]
) -> None:
    """Fine if it is gone. A server whose own clock ends it at the same moment refuses, and is waited for."""

    async def gone() -> bool | None:
        try:
            await boundary.cross(look())
        except SandboxLost:
            return True
        return None

    try:
        await boundary.cross(kill())
    except SandboxLost:
        return
    except DriverError:
        if await poll(gone, deadline_s=_END_S) is None:
            raise


def _resource(limits: Limits) -> dict[str, str]:
    """Limits in the server's words; what is not asked for is as the SDK has it."""
    resource = {"cpu": "1", "memory": "2Gi"}
    if limits.cpus is not None:
        resource["cpu"] = f"{limits.cpus * 1000:g}m"
    if limits.memory_bytes is not None:
        resource["memory"] = str(limits.memory_bytes)
    return resource


def _be_quiet(logger: logging.Logger) -> None:
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _classify(error: BaseException, words: str) -> DutyfreeError:
    """The one place where the SDK's errors become ours."""
    if isinstance(error, SandboxRateLimitException):
        wait = error.retry_after
        return Saturated(words, retry_after_s=wait.total_seconds() if wait else 1.0, driver=NAME)
    if isinstance(error, SandboxApiException):
        return _classify_answer(error.status_code or 0, error.error.code, words)
    if isinstance(error, SandboxReadyTimeoutException):
        return DriverError(f"the sandbox did not become ready: {words}", driver=NAME, step="create")
    if isinstance(error, SandboxConnectionException | SandboxTimeoutException):
        return Unavailable(words, driver=NAME)
    if isinstance(error, InvalidArgumentException):
        return Misuse(words, driver=NAME)
    return DriverError(words, driver=NAME)


def _classify_answer(status: int, code: str, words: str) -> DutyfreeError:
    if code.endswith("IMAGE_PULL_FAILED"):
        return Misuse(f"the server has no such image and cannot fetch it: {words}", field="image", driver=NAME)
    if status in (401, 403):
        return Unavailable(words, enable=f"export {KEY}=…", driver=NAME)
    if status == 404:
        return SandboxLost(f"the server has it no more: {words}", driver=NAME)
    if status in (400, 422):
        return Misuse(words, driver=NAME)
    return DriverError(words, driver=NAME)
