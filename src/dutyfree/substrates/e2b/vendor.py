"""The account at e2b, and one of its machines. The only module that imports the SDK.

Output comes as text, so that commands go by `hosted.text`. Variables of a spec are given with each command and not to
the vendor, who would keep them. The SDK keeps its connections for the whole process; there is nothing to close.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import httpx
from connectrpc.errors import ConnectError
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    ConnectionConfig,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    ServiceBusyException,
    TimeoutException,
)

from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unavailable
from dutyfree.core.spec import Spec
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.exec_call import STDERR, STDOUT, ExecCall, ExecEnd, Sink
from dutyfree.substrates.hosted.boundary import Boundary
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.text import Reading, prepare

NAME = "e2b"
OURS = {"dutyfree": "sandbox"}
"""A mark by which the vendor can list them."""

_OWN_ADDRESS = "https://api.e2b.app"
_BROKEN = (ConnectError, httpx.HTTPError, OSError)
"""What passes through the SDK when a connection breaks."""
_ERRORS = (SandboxException, AuthenticationException, ServiceBusyException, *_BROKEN)
_REFUSED = (400, 403, 404)
_NOBODY = re.compile(r"invalid username|looking up user")


class E2bVendor:
    """One account."""

    def __init__(self, template: str, key: Credential) -> None:
        at = ConnectionConfig(api_key=key.reveal()).api_url
        self.version = f"{NAME} {version(NAME)}" + ("" if at == _OWN_ADDRESS else f" at {at}")
        self._template = template
        self._key = key
        self._boundary = Boundary(_ERRORS, _classify, [key])

    async def start(self, spec: Spec, marks: Mapping[str, str], ttl_s: float) -> E2bMachine:
        """A machine of the template that the image names."""
        template = self._template if spec.image == "host" else spec.image
        if template.startswith("/"):
            raise Misuse(f"{template!r} is a path of this machine: name a template", field="image", driver=NAME)
        starting = AsyncSandbox.create(
            template=template,
            timeout=math.ceil(ttl_s),
            metadata={**marks, **OURS},
            allow_internet_access=spec.network == "host",
            lifecycle={"on_timeout": "kill"},
            **self._options(),
        )
        return E2bMachine(await self._boundary.cross(starting), self._boundary)

    async def marked(self, key: str) -> Mapping[str, str]:
        """By the vendor's own list."""
        pages = AsyncSandbox.list(query=SandboxQuery(metadata=OURS), **self._options())
        found: dict[str, str] = {}
        while pages.has_next:
            for one in await self._boundary.cross(pages.next_items()):
                found[one.sandbox_id] = (one.metadata or {}).get(key, "")
        return found

    async def end(self, machine_id: str) -> None:
        """By its id."""
        await self._boundary.cross(AsyncSandbox.kill(machine_id, **self._options()))

    async def close(self) -> None:
        """Nothing is ours."""

    def _options(self) -> dict[str, Any]:
        """Build the options of a call without retries: the caller decides when to ask again."""
        return {"api_key": self._key.reveal(), "retries": 0}


class E2bMachine:
    """One sandbox of the vendor."""

    defaults = ImageDefaults()

    def __init__(self, sandbox: AsyncSandbox, boundary: Boundary) -> None:
        self._sandbox = sandbox
        self._cross = boundary.cross
        self._translate = boundary.translate

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """By `commands.run`."""
        # The vendor knows users by their names only.
        switch = wanted.user is not None and (wanted.user.isdecimal() or ":" in wanted.user)
        user = "root" if switch else wanted.user

        async def put(path: str, data: bytes) -> None:
            await self._cross(self._sandbox.files.write(path, data, user=user))

        reading = Reading(sink, driver=NAME)
        handle = await self._cross(
            self._sandbox.commands.run(
                await prepare(wanted if switch else wanted._replace(user=None), put, switch=switch),
                background=True,
                user=user,
                on_stdout=lambda text: reading.take(STDOUT, text),
                on_stderr=lambda text: reading.take(STDERR, text),
                stdin=False,
                timeout=0,
                retain_output=False,
            )
        )
        try:
            code = await self._exit_code(handle)
        finally:
            await handle.disconnect()
        return reading.ended or ExecEnd(exit_code=code & 0xFF)

    async def extend(self, ttl_s: float) -> None:
        """By the vendor's timeout, which counts from now."""
        await self._cross(self._sandbox.set_timeout(math.ceil(ttl_s)))

    async def end(self) -> None:
        """Kill it."""
        await self._cross(self._sandbox.kill())

    async def _exit_code(self, handle: Any) -> int:
        """The script's own; 0 unless it was killed itself."""
        waiting = asyncio.ensure_future(handle.wait())
        try:
            await asyncio.wait({waiting})
        finally:
            waiting.cancel()
        error = waiting.exception()
        if error is None:
            return 0
        if isinstance(error, CommandExitException):
            return error.exit_code
        if type(error) is Exception:  # what the SDK raises if the stream ends before the command
            failure = await self._vanished(str(error))
        else:
            failure = self._translate(error) if isinstance(error, _ERRORS) else error
        raise failure

    async def _vanished(self, words: str) -> DutyfreeError:
        if await self._cross(self._sandbox.is_running()):
            return DriverError(words, driver=NAME, step="exec")
        return SandboxLost("the vendor ended it", driver=NAME)


def _classify(error: BaseException, words: str) -> DutyfreeError:
    if isinstance(error, SandboxNotFoundException | SandboxNotRunningException):
        return SandboxLost(words, driver=NAME)
    if isinstance(error, AuthenticationException):
        if _NOBODY.search(words):  # of the sandbox, and not of the account
            return Misuse("is not known inside", field="user", driver=NAME)
        return Unavailable(words, enable="export E2B_API_KEY=…", driver=NAME)
    if isinstance(error, RateLimitException | ServiceBusyException):
        return Saturated(words, driver=NAME)
    if isinstance(error, (TimeoutException, *_BROKEN)):
        return Unavailable(words, driver=NAME)
    if getattr(error, "status_code", None) in _REFUSED and "template" in words.lower():
        return Misuse(words, field="image", driver=NAME)
    return DriverError(words, driver=NAME)
